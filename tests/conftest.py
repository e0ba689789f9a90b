"""Session set-up: a private cache, reproducible random programs, and visible skips where a GPU is missing."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import tempfile
import zlib
from pathlib import Path

import pytest
from hypothesis import settings

_CACHE_VARIABLE = "TESSERA_CACHE_DIR"
_TESTS = Path(__file__).parent
_DRAWN = re.compile(r"^tests/conformance/.*-(?:scheduled|ptx)-sm_80\]$")
_private_cache = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    """Send everything this session compiles to a directory of its own, never to the user's cache."""
    # Before collection: test modules may compile while they are imported.
    config.stash[_private_cache] = os.environ[_CACHE_VARIABLE] = tempfile.mkdtemp(
        prefix="tessera-tests-", dir=_memory()
    )
    # No deadline: the first example of a kernel compiles it, later ones hit the cache.
    base = settings.get_profile("ci" if "CI" in os.environ else "default")
    settings.register_profile("tessera", base, deadline=None)
    settings.load_profile("tessera")


def _memory() -> str | None:
    """Return where files are kept in memory, if there is room: a disk takes milliseconds for the files of a kernel."""
    path = "/dev/shm"
    return path if os.access(path, os.W_OK) and shutil.disk_usage(path).free > 2**32 else None


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the session's cache directory."""
    shutil.rmtree(config.stash[_private_cache], ignore_errors=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what another tree's run does, and skip the tests marked `device` where no NVIDIA GPU answers."""
    if _is_whole_suite(config) and "TESSERA_EXHAUSTIVE" not in os.environ:
        left_out = _left_to_other_trees(items)
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
        items[:] = [item for item in items if item.nodeid not in left_out]
    marked = [item for item in items if item.get_closest_marker("device")]
    missing = _why_no_gpu() if marked else None
    if missing is not None:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=f"no NVIDIA GPU: {missing}"))


def _is_whole_suite(config: pytest.Config) -> bool:
    """Return whether all tests were asked for, not some of them by name."""
    return [(config.invocation_params.dir / arg).resolve() for arg in config.args] == [_TESTS]


def _left_to_other_trees(items: list[pytest.Item]) -> set[str]:
    """Return the tests for one of two GPUs that are left out: which one is drawn for each, from the sources.

    Every change draws anew, and one tree the same ones however often it is run, as with random programs.
    """
    named = {item.nodeid for item in items}
    text = b"".join(path.read_bytes() for path in sorted((_TESTS.parent / "src").rglob("*.py")))
    tree, found = zlib.crc32(text), set[str]()
    for name in sorted(named):
        other = name.replace("sm_80", "sm_90a")
        if other != name and other in named and _DRAWN.search(name):
            found.add((name, other)[zlib.crc32(name.encode(), tree) & 1])
    return found


def _why_no_gpu() -> str | None:
    """Ask the driver itself, so that neither Tessera's runtime nor an extra decides what is skipped."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return str(error)
    status = driver.cuInit(0)
    if status != 0:
        return f"cuInit returned {status}"
    count = ctypes.c_int(0)
    status = driver.cuDeviceGetCount(ctypes.byref(count))
    if status != 0:
        return f"cuDeviceGetCount returned {status}"
    return None if count.value > 0 else "the driver lists no device"
