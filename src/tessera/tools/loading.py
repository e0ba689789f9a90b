"""Finds a kernel in a Python file: `gemm.py:gemm`."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from tessera.driver.kernel import Kernel
from tessera.driver.open_kernel import OpenKernel
from tessera.errors import CallError, Frame, Location, TesseraError


class _Reported:
    """Turns what a user's file raises while it is imported into a typed error that points into the file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, Exception) or isinstance(error, TesseraError):
            return
        frames = [frame for frame in traceback.extract_tb(trace) if frame.filename == str(self._path)]
        where = Location(Frame(str(self._path), frames[-1].lineno or 1)) if frames else None
        if isinstance(error, SyntaxError) and error.lineno:
            where = Location(Frame(error.filename or str(self._path), error.lineno, error.offset or 1))
        raise CallError(
            f"{self._path.name} cannot be imported: {type(error).__name__}: {error}",
            code="bad-file",
            location=where,
            help="run the file with Python to see where it fails",
        ) from error


def import_file(path: Path) -> ModuleType:
    """Return the module of a Python file.

    Raises:
        CallError: `no-such-file`, or `bad-file` with the line that raised.
    """
    path = path.resolve()
    if not path.is_file():
        raise CallError(f"there is no file {path}", code="no-such-file", help="write file.py:kernel")
    name = f"_tessera_file_{path.stem}"  # a file may be called as a module is that the program needs
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise CallError(f"{path.name} is not a Python file", code="bad-file", help="write file.py:kernel")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    folder = str(path.parent)
    sys.path.insert(0, folder)  # the file imports its neighbours as it would when run
    try:
        with _Reported(path):
            spec.loader.exec_module(module)
    finally:
        with suppress(ValueError):  # the file may have taken it away itself
            sys.path.remove(folder)
    return module


def find_kernel(text: str) -> Kernel[..., Any] | OpenKernel[..., Any]:
    """Return the kernel that `file.py:name` names; `file.py` alone will do when it holds one kernel.

    Raises:
        CallError: `no-such-file`, `bad-file` or `no-such-kernel`.
    """
    # A path may hold a colon itself (C:\x.py), a kernel's name may not.
    head, colon, tail = text.rpartition(":")
    file, name = (head, tail) if colon and tail.isidentifier() else (text, "")
    module = import_file(Path(file))
    kernels: dict[str, Kernel[..., Any] | OpenKernel[..., Any]] = {
        key: value for key, value in vars(module).items() if isinstance(value, Kernel | OpenKernel)
    }
    if not name and len(kernels) == 1:
        return next(iter(kernels.values()))
    if name not in kernels:
        wanted = f"no kernel {name!r}" if name else f"{len(kernels)} kernels"
        raise CallError(
            f"{file} holds {wanted}",
            code="no-such-kernel",
            help=f"kernels: {', '.join(sorted(kernels)) or 'none'}; write {file}:name",
        )
    return kernels[name]
