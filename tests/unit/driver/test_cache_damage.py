"""Damaged, foreign, swapped and unreadable files of the disk cache: one warning, and the right result."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

import tessera as ts
from tessera.driver import cache
from tessera.driver.cache import DiskCache
from tessera.errors import DiagnosticWarning
from tessera.target.artifact import Artifact

ARTIFACT = Artifact("k", "cpu", "cpu", (), (), (), b"\x7fcode" * 50, "object", requires=("x86_64",))
KEY, OTHER = "ab" * 32, "cd" * 32
PATHS = [(("kernel", 0), ("name", "SCALE"))]


@ts.kernel
def doubled(x: ts.Tensor["n", ts.f32]):
    for i in ts.tile.grid((n, 16)):
        x[i : i + 16] = x[i : i + 16] * 2.0


@ts.kernel
def tripled(x: ts.Tensor["n", ts.f32]):
    for i in ts.tile.grid((n, 16)):
        x[i : i + 16] = x[i : i + 16] * 3.0


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("TESSERA_CACHE_DIR", str(tmp_path / "kernels"))
    monkeypatch.setattr(cache, "_opened", {})
    return tmp_path / "kernels"


def run_both() -> None:
    """Run both kernels as a new process would, and check what they give."""
    for kernel, factor in ((doubled, 2), (tripled, 3)):
        x = np.ones(40, np.float32)
        ts.kernel(kernel.__wrapped__)(x)
        np.testing.assert_array_equal(x, np.full(40, factor, np.float32))


def filled(root: Path) -> DiskCache:
    """Return a cache with a file of each kind."""
    disk = DiskCache.open()
    assert disk is not None
    disk.store(KEY, {}, ARTIFACT)
    disk.store(OTHER, {0: 4}, ARTIFACT)
    disk.store_paths(KEY, PATHS)
    disk.store_blob(KEY, b"machine code")
    disk.store_blob(OTHER, b"other machine code")
    disk.compiler_hash()
    return disk


def all_of(disk: DiskCache):
    """Return what is found of each kind."""
    return (
        disk.find(KEY, [4]),
        disk.find(OTHER, [4]),
        list(disk.paths(KEY)),
        disk.find_blob(KEY),
        disk.find_blob(OTHER),
        disk.compiler_hash(),
    )


def files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


def mutated(data: bytes, source: random.Random) -> bytes:
    at = source.randrange(len(data) + 1)
    match source.randrange(5):
        case 0:
            flipped = bytearray(data)
            flipped[at - 1] ^= 1 << source.randrange(8)
            return bytes(flipped)
        case 1:
            return data[:at]
        case 2:
            return data[:at] + source.randbytes(3) + data[at:]
        case 3:
            return b""
        case _:
            return data[:at] + data[at + source.choice((1, 9)) :]


def test_damage_of_any_file_gives_nothing_or_what_was_stored(root):
    source = random.Random(5)
    disk = filled(root)
    good, names = all_of(disk), files(root)
    kept = {path: path.read_bytes() for path in names}
    assert len(names) == 6
    for _ in range(120):
        chosen = source.sample(names, source.choice((1, 1, 2, 6)))
        for path in chosen:
            path.write_bytes(mutated(kept[path], source))
        changed = sum(path.read_bytes() != kept[path] for path in chosen)
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            found = all_of(DiskCache(root, 1 << 20))
        assert all(one in (before, None, []) for one, before in zip(found, good, strict=True))
        assert len(given) == changed, "one warning each"
        for path in names:
            path.write_bytes(kept[path])


def test_a_file_in_anothers_place_is_not_used(root):
    disk = filled(root)
    good, names = all_of(disk), files(root)
    kept = {path: path.read_bytes() for path in names}
    for source in names:
        for target in names:
            if source != target:
                target.write_bytes(kept[source])
                with pytest.warns(DiagnosticWarning, match="checksum"):
                    found = all_of(DiskCache(root, 1 << 20))
                assert all(one in (before, None, []) for one, before in zip(found, good, strict=True))
                target.write_bytes(kept[target])
    moved = disk._folder("ef" * 32)
    shutil.copytree(disk._folder(KEY), moved)
    with pytest.warns(DiagnosticWarning, match="checksum"):
        assert disk.find("ef" * 32, []) is None


def in_the_way(path: Path) -> None:
    path.unlink()
    path.mkdir()


def pipe(path: Path) -> None:
    if not hasattr(os, "mkfifo"):
        pytest.skip("there are no named pipes")
    path.unlink()
    os.mkfifo(path, 0o600)


def of_somebody_else(path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root gives files away")
    os.chown(path, 4321, -1)


@pytest.mark.parametrize("spoil", [in_the_way, pipe, of_somebody_else, lambda path: path.chmod(0o666)])
def test_files_that_cannot_be_read_or_trusted_are_skipped_with_one_warning(root, spoil):
    filled(root)
    for path in files(root):
        if path.parent.name != "compiler":
            spoil(path)
    disk = DiskCache(root, 1 << 20)
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        for _ in range(3):
            assert all_of(disk)[:5] == (None, None, [], None, None)
        if spoil is not in_the_way:
            disk.store_blob(KEY, b"machine code")
            assert disk.find_blob(KEY) == b"machine code", "a new file takes its place"
    assert len({str(one.message) for one in given}) == len(given)


@pytest.mark.parametrize(
    "error",
    [
        PermissionError(13, "Permission denied"),
        OSError(28, "No space left on device"),
        OSError(30, "Read-only file system"),
    ],
)
def test_a_cache_that_cannot_be_written_is_one_warning_and_results_are_right(root, monkeypatch, error):
    DiskCache.open()

    def fails(*_args, **_options):
        raise error

    monkeypatch.setattr(tempfile, "mkstemp", fails)
    monkeypatch.setattr(os, "utime", fails)
    with pytest.warns(DiagnosticWarning) as given:
        run_both()
    assert len(given) == 1
    assert error.strerror in str(given[0].message)


def test_a_swapped_kernel_is_compiled_again(root):
    run_both()
    first, second = sorted(root.glob("artifacts/*/*/*.art"))
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    second.write_bytes(one)
    cache._opened.clear()
    with pytest.warns(DiagnosticWarning, match="corrupt"):
        run_both()


def test_clear_leaves_nothing(root):
    disk = filled(root)
    (root / "artifacts" / KEY[:2] / KEY / ".tmp-left").write_bytes(b"half")
    assert disk.clear() == 2
    assert files(root) == []
    assert all_of(disk)[:5] == (None, None, [], None, None)


def test_everything_counts_against_the_limit(root):
    filled(root)
    DiskCache(root, limit=0).trim()
    assert files(root) == []


PROGRAM = """
import numpy as np, tessera as ts
@ts.kernel
def doubled(x: ts.Tensor["n", ts.f32]):
    for i in ts.tile.grid((n, 16)):
        x[i : i + 16] = x[i : i + 16] * 2.0
x = np.ones(1 << 20, np.float32)
for _ in range(6):
    doubled(x)
assert (x == 64).all()
"""


def test_damaged_code_of_the_runtime_is_made_again(tmp_path):
    """The machine code that all kernels share, in a process of its own: it would crash."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = {**os.environ, "TESSERA_CACHE_DIR": str(tmp_path / "kernels"), "TESSERA_NUM_THREADS": "2"}

    def run() -> str:
        command = [sys.executable, "-W", "always", str(program)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stderr

    assert "Warning" not in run()
    shared = files(tmp_path / "kernels" / "shared")
    assert len(shared) == 3, "the entry, the pool, and what LLVM says of the CPU, which only compiling asks"
    for number, path in enumerate(shared):
        data = bytearray(path.read_bytes())
        data[len(data) // 2 + number] ^= 0xFF
        path.write_bytes(data)
    assert run().count("corrupt") == 2
    assert "Warning" not in run()


def test_a_writer_killed_at_any_moment_leaves_whole_entries(root):
    DiskCache.open()
    writer = (
        "from tessera.driver.cache import DiskCache\n"
        "from tessera.target.artifact import Artifact\n"
        "disk = DiskCache.open()\n"
        "print('ready', flush=True)\n"
        "for n in range(10**6):\n"
        "    code = bytes([n % 256]) * 500_000\n"
        "    disk.store('ab' * 32, {}, Artifact('k', 'cpu', 'cpu', (), (), (), code, 'object', requires=('x',)))\n"
        "    disk.store_blob('cd', code)\n"
    )
    source = random.Random(2)
    for _ in range(3):
        job = subprocess.Popen([sys.executable, "-c", writer], stdout=subprocess.PIPE)
        assert job.stdout is not None
        job.stdout.readline()
        time.sleep(0.05 + source.random() / 10)
        job.send_signal(signal.SIGKILL)
        job.wait(30)
        job.stdout.close()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            disk = DiskCache(root, 1 << 30)
            found = disk.find(KEY, [])
            blob = disk.find_blob("cd")
        assert found is None or len(set(found[1].code)) == 1
        assert blob is None or len(set(blob)) == 1
    disk.clear()
    assert files(root) == []
