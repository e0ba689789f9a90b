"""The disk cache of compiled kernels: data only, private to the user, safe between processes and versions.

A key stands for everything that decides the code except the sizes that compilation may have fixed. Those
are in the file's name, so one key has a folder with one file per set of fixed sizes and needs no index that
processes could race for:

    artifacts/3f/3f0c…/any.art        nothing fixed
    artifacts/3f/3f0c…/1=128,2=64.art the second and third dimension name fixed to 128 and 64
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tessera.errors import CallError, DiagnosticWarning
from tessera.jit import version
from tessera.target.artifact import Artifact, ArtifactError

_SUFFIX = ".art"
_UNFIXED = "any"
_FIXED = re.compile(r"(\d+)=(\d+)")
_STALE_SECONDS = 3600
_STORES_PER_TRIM = 64


def default_path() -> Path:
    """Return where the cache is: `TESSERA_CACHE_DIR`, else the platform's cache folder."""
    if chosen := os.environ.get("TESSERA_CACHE_DIR"):
        return Path(chosen)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "tessera"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tessera"


def size_limit() -> int:
    """Return the most bytes the cache may hold: `TESSERA_CACHE_SIZE_MB`, 1024 by default; 0 turns it off.

    Raises:
        CallError: `bad-environment`.
    """
    text = os.environ.get("TESSERA_CACHE_SIZE_MB", "1024")
    if not text.isdecimal():
        raise CallError(
            f"TESSERA_CACHE_SIZE_MB is {text!r}",
            code="bad-environment",
            help="set it to a number of megabytes",
        )
    return int(text) * 2**20


def _warn(message: str) -> None:
    warnings.warn(message, DiagnosticWarning, stacklevel=2)


def _why_not_private(path: Path) -> str | None:
    """Return why code from this folder must not run, None when only this user can have written it."""
    for facts in (path.lstat(), path.stat()):
        if hasattr(os, "getuid") and facts.st_uid != os.getuid():
            return f"it belongs to user {facts.st_uid}"
    if os.name == "posix" and path.stat().st_mode & 0o022:
        return f"others may write to it (mode {path.stat().st_mode & 0o777:o})"
    return None if path.is_dir() else "it is no folder"


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """One file of the cache."""

    path: Path
    size: int
    used: float


class DiskCache:
    """A private folder of artefacts.

    Args:
        root: the folder.
        limit: most bytes it may hold.
    """

    def __init__(self, root: Path, limit: int) -> None:
        self.root = root
        self._limit = limit
        self._stores = 0

    @classmethod
    def open(cls) -> DiskCache | None:
        """Return the user's cache, None (with a warning that says why) when it cannot be used or trusted."""
        root, limit = default_path(), size_limit()
        if limit == 0:
            return None
        try:
            root.parent.mkdir(parents=True, exist_ok=True)
            root.mkdir(mode=0o700, exist_ok=True)
            reason = _why_not_private(root)
        except OSError as error:
            reason = str(error)
        if reason is not None:
            _warn(f"the kernel cache {root} is not used: {reason}; set TESSERA_CACHE_DIR to a private folder")
            return None
        return cls(root, limit)

    def compiler_hash(self) -> str:
        """Return the hash of the package's sources, kept under their stamp."""
        path = self.root / "compiler" / version.sources_stamp()
        with suppress(OSError):
            kept = path.read_text()
            if len(kept) == 64:
                return kept
        found = version.sources_hash()
        self._write(path, found.encode())
        return found

    def _folder(self, key: str) -> Path:
        return self.root / "artifacts" / key[:2] / key

    def find(self, key: str, sizes: Sequence[int | None]) -> tuple[dict[int, int], Artifact] | None:
        """Return the artefact that fits, with the sizes that are fixed in it.

        Args:
            key: what it was stored under.
            sizes: size of each dimension, in the order that `store` counted them.
        """
        folder = self._folder(key)
        try:
            names = os.listdir(folder)
        except FileNotFoundError:
            return None
        for name in names:
            if not name.endswith(_SUFFIX):
                continue
            fixed = {int(place): int(size) for place, size in _FIXED.findall(name)}
            if all(place < len(sizes) and sizes[place] == size for place, size in fixed.items()):
                artifact = self._read(folder / name)
                if artifact is not None:
                    return fixed, artifact
        return None

    def _read(self, path: Path) -> Artifact | None:
        try:
            artifact = Artifact.from_bytes(path.read_bytes())
            os.utime(path)  # the time says when it was last used
        except FileNotFoundError:  # trimmed by another process meanwhile
            return None
        except ArtifactError as error:
            _warn(f"the cached kernel {path.name} is corrupt and is compiled again: {error.message}")
            with suppress(OSError):
                path.unlink()
            return None
        return artifact

    def store(self, key: str, fixed: Mapping[int, int], artifact: Artifact) -> None:
        """Keep an artefact; a cache that cannot be written is a warning."""
        name = ",".join(f"{place}={size}" for place, size in sorted(fixed.items())) or _UNFIXED
        self._write(self._folder(key) / f"{name}{_SUFFIX}", artifact.to_bytes())
        if self._stores % _STORES_PER_TRIM == 0:
            self.trim()
        self._stores += 1

    def find_blob(self, key: str) -> bytes | None:
        """Return data kept under a key, such as code that all kernels share."""
        with suppress(OSError):
            return (self.root / "shared" / key).read_bytes()
        return None

    def store_blob(self, key: str, data: bytes) -> None:
        """Keep data under a key; a cache that cannot be written is a warning."""
        self._write(self.root / "shared" / key, data)

    def _write(self, path: Path, data: bytes) -> None:
        """Write a file so that other processes see all of it or none."""
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(prefix=".tmp-", dir=path.parent)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                os.replace(temporary, path)
            except OSError:
                os.unlink(temporary)
                raise
        except OSError as error:
            _warn(f"the kernel cache {self.root} cannot be written: {error}")

    def entries(self) -> Iterator[CacheEntry]:
        """Yield the cached artefacts."""
        for path in (self.root / "artifacts").glob(f"*/*/*{_SUFFIX}"):
            with suppress(FileNotFoundError):
                facts = path.stat()
                yield CacheEntry(path, facts.st_size, facts.st_mtime)

    def trim(self) -> None:
        """Remove the artefacts unused for longest beyond the limit, and what crashed writers left."""
        entries = sorted(self.entries(), key=lambda entry: entry.used)
        total = sum(entry.size for entry in entries)
        for entry in entries:
            if total <= self._limit:
                break
            _remove(entry.path)
            total -= entry.size
        for path in self.root.glob("artifacts/*/*/.tmp-*"):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > _STALE_SECONDS:
                    path.unlink()

    def clear(self) -> int:
        """Remove all artefacts; returns how many there were."""
        removed = 0
        for entry in list(self.entries()):
            _remove(entry.path)
            removed += 1
        return removed


def _remove(path: Path) -> None:
    with suppress(OSError):  # gone already, or another process has just put a new variant into the folder
        path.unlink()
        path.parent.rmdir()


_opened: dict[tuple[Path, int], DiskCache | None] = {}


def disk_cache() -> DiskCache | None:
    """Return this process's cache, opened (and complained about) once per folder."""
    where = (default_path(), size_limit())
    if where not in _opened:
        _opened[where] = DiskCache.open()
    return _opened[where]
