"""Where NVIDIA's assembler is on this machine: in the wheel that Tessera asks for, or in a CUDA toolkit."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path


@cache
def ptxas() -> Path | None:
    """Return the path of `ptxas`, None where there is none.

    The wheel `nvidia-cuda-nvcc` comes first, then `CUDA_HOME`, then the search path.
    """
    return next((path for path in _places() if os.access(path, os.X_OK)), None)


def _places() -> Iterator[Path]:
    wheel = importlib.util.find_spec("nvidia")
    for folder in (wheel.submodule_search_locations or ()) if wheel is not None else ():
        yield Path(folder, "cu13", "bin", "ptxas")
    if home := os.environ.get("CUDA_HOME"):
        yield Path(home, "bin", "ptxas")
    if found := shutil.which("ptxas"):
        yield Path(found)


@cache
def assembler_identity() -> str:
    """Return what tells one assembler from another, for cache keys; found without running it."""
    path = ptxas()
    if path is None:
        return "nvjitlink"
    facts = path.stat()
    return f"ptxas {facts.st_size} {facts.st_mtime_ns}"
