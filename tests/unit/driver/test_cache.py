"""The disk cache: privacy, corruption, races, size, and versions."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tessera.driver import cache, version
from tessera.driver.cache import DiskCache, default_path, disk_cache, size_limit
from tessera.errors import CallError, DiagnosticWarning
from tessera.target.artifact import Artifact

ARTIFACT = Artifact("k", "cpu", "cpu", (), (), (), b"\x7fcode", "object", requires=("x86_64",))
KEY = "ab" * 32


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("TESSERA_CACHE_DIR", str(tmp_path / "kernels"))
    monkeypatch.setattr(cache, "_opened", {})
    return tmp_path / "kernels"


def test_what_is_stored_is_found(root):
    disk = DiskCache.open()
    assert disk.find(KEY, [4, 5]) is None
    disk.store(KEY, {}, ARTIFACT)
    assert disk.find(KEY, [4, 5]) == ({}, ARTIFACT)


def test_variants_are_told_apart_by_their_fixed_sizes(root):
    disk = DiskCache.open()
    for size in (64, 128):
        disk.store(KEY, {1: size}, replace(ARTIFACT, name=f"k{size}"))
    assert disk.find(KEY, [7, 128])[1].name == "k128"
    assert disk.find(KEY, [7, 64]) == ({1: 64}, replace(ARTIFACT, name="k64"))
    assert disk.find(KEY, [7, 32]) is None
    assert disk.find(KEY, [7, None]) is None


def test_the_folder_is_private(root):
    DiskCache.open().store(KEY, {}, ARTIFACT)
    assert root.stat().st_mode & 0o777 == 0o700
    assert next(root.rglob("*.art")).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_folder_that_others_may_write_to_is_refused_with_a_warning(root, mode):
    root.mkdir()
    root.chmod(mode)
    with pytest.warns(DiagnosticWarning, match="others may write"):
        assert disk_cache() is None
    assert disk_cache() is None, "and the warning comes once"


def test_a_folder_of_somebody_else_is_refused(root, monkeypatch):
    root.mkdir(mode=0o700)
    if os.getuid() == 0:
        os.chown(root, 4321, -1)
    else:
        monkeypatch.setattr(os, "getuid", lambda: root.stat().st_uid + 1)
    with pytest.warns(DiagnosticWarning, match="belongs to user"):
        assert DiskCache.open() is None


def test_a_file_in_the_way_is_a_warning(root):
    root.write_text("")
    with pytest.warns(DiagnosticWarning):
        assert DiskCache.open() is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: b"x" * 100,
        lambda data: data[:60] + b"\0" * 9 + data[69:],
    ],
)
def test_a_corrupt_entry_is_dropped_with_a_warning(root, damage):
    disk = DiskCache.open()
    disk.store(KEY, {}, ARTIFACT)
    path = next(root.rglob("*.art"))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.warns(DiagnosticWarning, match="corrupt"):
        assert disk.find(KEY, []) is None
    assert not path.exists()
    disk.store(KEY, {}, ARTIFACT)
    assert disk.find(KEY, []) is not None


def test_an_unwritable_cache_is_a_warning(root, monkeypatch):
    disk = DiskCache.open()

    def full(*_args, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(DiagnosticWarning, match="No space left"):
        disk.store(KEY, {}, ARTIFACT)
    assert not list(root.rglob(".tmp-*")), "the temporary file is removed"


def root_of(disk, key):
    """Return the folder of a key."""
    return Path(disk._folder(key))


def test_the_least_recently_used_go_first(root):
    disk = DiskCache.open()
    keys = [f"{n:02d}" * 32 for n in range(4)]
    for age, key in enumerate(keys):
        disk.store(key, {}, ARTIFACT)
        os.utime(root_of(disk, key) / "any.art", (1000 + age, 1000 + age))
    disk.find(keys[0], [])  # used again: now the youngest
    disk = DiskCache(root, limit=3 * (root_of(disk, keys[0]) / "any.art").stat().st_size)
    disk.trim()
    assert [disk.find(key, []) is not None for key in keys] == [True, False, True, True]
    assert not root_of(disk, keys[1]).exists()


def test_trimming_removes_what_crashed_writers_left(root):
    disk = DiskCache.open()
    disk.store(KEY, {}, ARTIFACT)
    old, young = root_of(disk, KEY) / ".tmp-old", root_of(disk, KEY) / ".tmp-young"
    for path in (old, young):
        path.write_bytes(b"")
    os.utime(old, (time.time() - 7200,) * 2)
    disk.trim()
    assert (old.exists(), young.exists()) == (False, True)


def test_clear(root):
    disk = DiskCache.open()
    for n in range(3):
        disk.store(f"{n:02d}" * 32, {}, ARTIFACT)
    assert disk.clear() == 3
    assert list(disk.entries()) == []


def test_a_size_of_zero_turns_it_off(root, monkeypatch):
    monkeypatch.setenv("TESSERA_CACHE_SIZE_MB", "0")
    assert disk_cache() is None
    monkeypatch.setenv("TESSERA_CACHE_SIZE_MB", "some")
    with pytest.raises(CallError) as caught:
        size_limit()
    assert caught.value.code == "bad-environment"


def test_the_platform_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("TESSERA_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_path() == str(tmp_path / "tessera")


def test_a_relative_path_stays_where_it_was_first(monkeypatch, tmp_path):
    monkeypatch.setenv("TESSERA_CACHE_DIR", f"kernels-of-{tmp_path.name}")
    monkeypatch.chdir(tmp_path)
    first = default_path()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert default_path() == first == str(tmp_path / f"kernels-of-{tmp_path.name}")


def test_the_root_folder_is_a_folder():
    cache = DiskCache("/", 0)
    assert cache._place("artifacts", "x") == "/artifacts/x"
    assert cache._seal("/artifacts/x", b"1") == DiskCache("/tmp/", 0)._seal("/tmp/artifacts/x", b"1")


def test_many_writers_and_readers_never_see_half_an_entry(root):
    DiskCache.open()
    program = (
        "import sys, warnings\n"
        "warnings.simplefilter('error')\n"
        "from tessera.driver.cache import DiskCache\n"
        "from tessera.target.artifact import Artifact\n"
        "disk = DiskCache.open()\n"
        "code = bytes([int(sys.argv[1])]) * 200_000\n"
        "artifact = Artifact('k', 'cpu', 'cpu', (), (), (), code, 'object', requires=('x',))\n"
        "for _ in range(60):\n"
        "    disk.store('cd' * 32, {}, artifact)\n"
        "    found = disk.find('cd' * 32, [])\n"
        "    assert found is not None and len(set(found[1].code)) == 1\n"
    )
    jobs = [subprocess.Popen([sys.executable, "-c", program, str(n)]) for n in range(3)]
    assert [job.wait(60) for job in jobs] == [0, 0, 0]


def test_the_compiler_hash_is_kept_under_the_stamp(root, monkeypatch):
    disk = DiskCache.open()
    first = disk.compiler_hash()
    assert first == version.sources_hash()
    monkeypatch.setattr(version, "sources_hash", lambda: pytest.fail("read again"))
    assert disk.compiler_hash() == first
    monkeypatch.setattr(version, "sources_stamp", lambda: "f" * 64)
    monkeypatch.setattr(version, "sources_hash", lambda: "e" * 64)
    assert disk.compiler_hash() == "e" * 64
