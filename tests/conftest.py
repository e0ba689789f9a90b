"""Session set-up: a private cache, reproducible random programs, and visible skips where a GPU is missing."""

from __future__ import annotations

import ctypes
import gc
import os
import shutil
import tempfile
import zlib
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.draw import PART_OF_FILES, by_file, by_test, left_out

_CACHE_VARIABLE = "TESSERA_CACHE_DIR"
_TESTS = Path(__file__).parent
_private_cache = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    """Send everything this session compiles to a directory of its own, never to the user's cache."""
    if not hasattr(config, "workerinput"):  # the workers of a session share what one of them compiled
        # Before collection: test modules may compile while they are imported.
        config.stash[_private_cache] = os.environ[_CACHE_VARIABLE] = tempfile.mkdtemp(
            prefix="tessera-tests-", dir=_memory()
        )
    os.environ["TESSERA_COMPILE_PROCESSES"] = "1"  # the tests of a session are shared by processes already
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
    if _private_cache in config.stash:
        shutil.rmtree(config.stash[_private_cache], ignore_errors=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the cases that other trees run, and skip the tests marked `device` where no NVIDIA GPU answers."""
    if _is_whole_suite(config) and "TESSERA_EXHAUSTIVE" not in os.environ:
        others = _left_to_other_trees(items)
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in others])
        items[:] = [item for item in items if item.nodeid not in others]
    marked = [item for item in items if item.get_closest_marker("device")]
    missing = _why_no_gpu() if marked else None
    if missing is not None:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=f"no NVIDIA GPU: {missing}"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the cycle collector from a million objects that stay: modules, and the tests of the session."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _is_whole_suite(config: pytest.Config) -> bool:
    """Return whether all tests were asked for, not some of them by name."""
    return [(config.invocation_params.dir / arg).resolve() for arg in config.args] == [_TESTS]


def _left_to_other_trees(items: list[pytest.Item]) -> set[str]:
    """Return the cases that this run leaves out, by name."""
    text = b"".join(path.read_bytes() for path in sorted((_TESTS.parent / "src").rglob("*.py")))
    tree = zlib.crc32(text)
    some = [item for item in items if isinstance(item, pytest.Function) and not _is_never_left_out(item)]
    cases = left_out(by_test(item.nodeid for item in some if hasattr(item, "callspec")), tree)
    tests = by_file(item.nodeid for item in some if item.nodeid not in cases)
    return cases | left_out(tests, tree, PART_OF_FILES)


def _is_never_left_out(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in ("device", "every_case"))


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
