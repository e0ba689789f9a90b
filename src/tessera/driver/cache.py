"""The disk cache of compiled kernels: data only, private to the user, safe between processes and versions.

A key stands for everything that decides the code except the sizes that compilation may have fixed. Those
are in the file's name, so one key has a folder with one file per set of fixed sizes and needs no index that
processes could race for:

    artifacts/3f/3f0c…/any.art        nothing fixed
    artifacts/3f/3f0c…/1=128,2=64.art the second and third dimension name fixed to 128 and 64

What of the program decides the code is known only after the front end has run. So a key has two steps: its *start*
holds all that is known before (the source, the arguments, the target, the compiler), a file under it tells which names
and attributes to look at, and the whole key holds their values too:

    artifacts/8a/8a41…/5c9d….reads    paths of what such a compilation read
    graphs/b7/b70e….plan              what a graph does when it runs, other than its kernels
    shared/…                          machine code that all kernels use
    compiler/…                        the compiler's hash, by the times of its files

Each file begins with a checksum over its place in the cache and its contents: a file that is damaged, or is that of
another key, is never used.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from stat import S_ISREG
from typing import TYPE_CHECKING, cast

from tessera.data import dataclass
from tessera.digest import sha256
from tessera.driver import version
from tessera.errors import DiagnosticWarning
from tessera.frontend.reads import Path as ReadPath
from tessera.runtime.environment import number_from
from tessera.target.artifact import Artifact
from tessera.target.schema import ArtifactError

if TYPE_CHECKING:
    from pathlib import Path

_SUFFIX = ".art"
_READS = ".reads"
_PLAN = ".plan"
_UNFIXED = "any"
_FIXED = re.compile(r"(\d+)=(\d+)")
_SEAL = b"tessera-cache-2\n"
_DIGEST = sha256().digest_size
_STALE_SECONDS = 3600
_STORES_PER_TRIM = 64
_TEMPORARY = ".tmp-"
_MOST_READS = 8
"""Lists of names followed for one key's start, the last used first: more than its branches need."""


_absolute: dict[str, str] = {}
"""What relative paths were taken for first: the cache does not move when the process changes its folder."""


def default_path() -> str:
    """Return where the cache is: `TESSERA_CACHE_DIR`, else the platform's cache folder."""
    if chosen := os.environ.get("TESSERA_CACHE_DIR"):
        return _absolute.setdefault(chosen, os.path.abspath(chosen))
    home = os.path.expanduser("~")
    if home == "~":  # a user without a home, as in some containers
        import tempfile

        return os.path.join(tempfile.gettempdir(), f"tessera-{os.getuid() if hasattr(os, 'getuid') else 'cache'}")
    if sys.platform == "darwin":
        return os.path.join(home, "Library", "Caches", "tessera")
    return os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.join(home, ".cache"), "tessera")


def size_limit() -> int:
    """Return the most bytes the cache may hold: `TESSERA_CACHE_SIZE_MB`, 1024 by default; 0 turns it off.

    Raises:
        CallError: `bad-environment`.
    """
    limit = number_from("TESSERA_CACHE_SIZE_MB", "a number of megabytes")
    return (1024 if limit is None else limit) * 2**20


def _warn(message: str) -> None:
    warnings.warn(message, DiagnosticWarning, stacklevel=2)


def _why_foreign(facts: os.stat_result) -> str | None:
    """Return whose a file or folder is, None when it is this user's or root's."""
    if hasattr(os, "getuid") and facts.st_uid not in (os.getuid(), 0):
        return f"it belongs to user {facts.st_uid}"
    return None


def _why_not_private(facts: os.stat_result) -> str | None:
    """Return why code from a file or folder must not run, None when only this user or root can have written it."""
    if os.name == "posix" and facts.st_mode & 0o022:
        return f"others may write to it (mode {facts.st_mode & 0o777:o})"
    return _why_foreign(facts)


def _at_once(path: str, flags: int) -> int:
    """Open a file without waiting for anybody to write to it, as opening a named pipe would."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _why_not_usable(path: str) -> str | None:
    """Return why a folder, or a link to one, cannot be the cache."""
    reason = _why_foreign(os.lstat(path)) or _why_not_private(os.stat(path))
    return reason or (None if os.path.isdir(path) else "it is not a folder")


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

    def __init__(self, root: str | Path, limit: int) -> None:
        self.root = os.fspath(root).rstrip(os.sep) or os.sep
        self._limit = limit
        self._stores = 0
        self._complained: set[str] = set()

    @classmethod
    def open(cls) -> DiskCache | None:
        """Return the user's cache, None (with a warning that says why) when it cannot be used or trusted."""
        root, limit = default_path(), size_limit()
        if limit == 0:
            return None
        try:
            os.makedirs(root, mode=0o700, exist_ok=True)  # the mode is the last folder's
            reason = _why_not_usable(root)
        except OSError as error:
            reason = str(error)
        if reason is not None:
            _warn(f"the kernel cache {root} is not used: {reason}; set TESSERA_CACHE_DIR to a private folder")
            return None
        return cls(root, limit)

    # Files

    def _place(self, *names: str) -> str:
        return os.path.join(self.root, *names)

    def _seal(self, path: str, data: bytes) -> bytes:
        """Return the checksum of a file's contents and its place."""
        place = path[len(self.root) :].replace(os.sep, "/").lstrip("/")
        return sha256(f"{place}\0".encode() + data).digest()

    def _load(self, path: str) -> bytes | None:
        """Return what a file holds, None when there is none that can be trusted."""
        try:
            with open(path, "rb", opener=_at_once) as file:
                facts = os.fstat(file.fileno())
                reason = _why_not_private(facts) if S_ISREG(facts.st_mode) else "it is not a file"
                raw = b"" if reason else file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._complain(path, f"cannot be read ({error.strerror})")
            return None
        data = raw[len(_SEAL) + _DIGEST :]
        if reason is not None:
            self._complain(path, f"is not used: {reason}")
        elif not raw.startswith(_SEAL) or raw[len(_SEAL) : len(_SEAL) + _DIGEST] != self._seal(path, data):
            self._drop(path, "its checksum is wrong")
        else:
            with suppress(OSError):
                os.utime(path)  # the time says when it was last used
            return data
        return None

    def _drop(self, path: str, reason: str) -> None:
        self._complain(path, f"is corrupt and is compiled again: {reason}")
        with suppress(OSError):
            os.unlink(path)

    def _complain(self, path: str, what: str) -> None:
        """Warn of a file, or of a folder that cannot be written, once."""
        if path not in self._complained:
            self._complained.add(path)
            name = path if path == self.root else os.path.relpath(path, self.root)
            _warn(f"{name} of the kernel cache {what}")

    def _write(self, path: str, data: bytes) -> None:
        """Write a file so that other processes see all of it or none; a cache that cannot be written is a warning."""
        sealed = _SEAL + self._seal(path, data) + data
        try:
            try:
                _replace(path, sealed)
            except FileNotFoundError:  # another process has just removed the folder, which was empty
                _replace(path, sealed)
        except OSError as error:
            self._complain(self.root, f"cannot be written: {error}")

    def compiler_hash(self) -> str:
        """Return the hash of the package's sources, kept under their stamp."""
        path = self._place("compiler", version.sources_stamp())
        kept = self._load(path)
        if kept is not None:
            return kept.decode()
        found = version.sources_hash()
        self._write(path, found.encode())
        return found

    # Kernels

    def _folder(self, key: str) -> str:
        return self._place("artifacts", key[:2], key)

    def _names(self, key: str, suffix: str) -> list[str]:
        try:
            return [name for name in os.listdir(self._folder(key)) if name.endswith(suffix)]
        except FileNotFoundError:
            return []
        except OSError as error:
            self._complain(self._folder(key), f"cannot be read ({error.strerror})")
            return []

    def paths(self, start: str) -> Iterator[list[ReadPath]]:
        """Yield what compilations under a key's start have read, the most recently used first.

        Args:
            start: the part of a key that is known before a compilation.
        """
        found: list[tuple[float, str]] = []
        for name in self._names(start, _READS):
            with suppress(OSError):
                path = os.path.join(self._folder(start), name)
                found.append((os.stat(path).st_mtime, path))
        for _, path in sorted(found, reverse=True)[:_MOST_READS]:
            data = self._load(path)
            if data is not None:
                lists = cast("list[list[tuple[str, str | int]]]", json.loads(data))
                yield [tuple((kind, name) for kind, name in steps) for steps in lists]

    def store_paths(self, start: str, paths: Sequence[ReadPath]) -> None:
        """Keep what a compilation read."""
        data = json.dumps(paths).encode()
        self._write(os.path.join(self._folder(start), f"{sha256(data).hexdigest()[:32]}{_READS}"), data)

    def find(self, key: str, sizes: Sequence[int | None]) -> tuple[dict[int, int], Artifact] | None:
        """Return the artefact that fits, with the sizes that are fixed in it.

        Args:
            key: what it was stored under.
            sizes: size of each dimension, in the order that `store` counted them.
        """
        for name in self._names(key, _SUFFIX):
            fixed = {int(place): int(size) for place, size in _FIXED.findall(name)}
            if all(place < len(sizes) and sizes[place] == size for place, size in fixed.items()):
                artifact = self._read(os.path.join(self._folder(key), name))
                if artifact is not None:
                    return fixed, artifact
        return None

    def _read(self, path: str) -> Artifact | None:
        data = self._load(path)
        if data is None:
            return None
        try:
            return Artifact.from_bytes(data)
        except ArtifactError as error:
            self._drop(path, error.message)
            return None

    def store(self, key: str, fixed: Mapping[int, int], artifact: Artifact) -> None:
        """Keep an artefact; a cache that cannot be written is a warning."""
        name = ",".join(f"{place}={size}" for place, size in sorted(fixed.items())) or _UNFIXED
        self._write(os.path.join(self._folder(key), f"{name}{_SUFFIX}"), artifact.to_bytes())
        if self._stores % _STORES_PER_TRIM == 0:
            self.trim()
        self._stores += 1

    def find_blob(self, key: str) -> bytes | None:
        """Return data kept under a key, such as code that all kernels share."""
        return self._load(self._place("shared", key))

    def store_blob(self, key: str, data: bytes) -> None:
        """Keep data under a key; a cache that cannot be written is a warning."""
        self._write(self._place("shared", key), data)

    def find_graph(self, key: str) -> bytes | None:
        """Return the plan of a graph."""
        return self._load(self._place("graphs", key[:2], f"{key}{_PLAN}"))

    def store_graph(self, key: str, data: bytes) -> None:
        """Keep the plan of a graph; a cache that cannot be written is a warning."""
        self._write(self._place("graphs", key[:2], f"{key}{_PLAN}"), data)

    def artifact_at(self, entry: CacheEntry) -> Artifact | None:
        """Return the artefact of an entry, None when it is damaged or gone."""
        return self._read(str(entry.path))

    # House-keeping

    def entries(self) -> Iterator[CacheEntry]:
        """Yield the cached artefacts."""
        return self._files(f"artifacts/*/*/*{_SUFFIX}")

    def _files(self, *patterns: str) -> Iterator[CacheEntry]:
        from pathlib import Path

        for pattern in patterns:
            for path in Path(self.root).glob(pattern):
                with suppress(OSError):
                    facts = path.stat()
                    if path.is_file():
                        yield CacheEntry(path, facts.st_size, facts.st_mtime)

    def _all(self) -> list[CacheEntry]:
        """Return every file, the least recently used first."""
        found = self._files("artifacts/*/*/*", "graphs/*/*", "shared/*", "compiler/*")
        return sorted(found, key=lambda entry: entry.used)

    def trim(self) -> None:
        """Remove the least recently used files beyond the limit, and what crashed writers left."""
        entries = self._all()
        total = sum(entry.size for entry in entries)
        for entry in entries:
            left = entry.path.name.startswith(_TEMPORARY)
            if total > self._limit if not left else time.time() - entry.used > _STALE_SECONDS:
                _remove(entry.path)
                total -= entry.size

    def clear(self) -> int:
        """Remove everything; returns how many kernels there were."""
        kernels = len(list(self.entries()))
        for entry in self._all():
            _remove(entry.path)
        return kernels


def _replace(path: str, data: bytes) -> None:
    import tempfile  # with much behind it, and a process that finds its kernels writes nothing

    folder = os.path.dirname(path)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=_TEMPORARY, dir=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _remove(path: Path) -> None:
    with suppress(OSError):  # gone already, or another process has just put a new variant into the folder
        path.unlink()
        path.parent.rmdir()


_opened: dict[tuple[str, int], DiskCache | None] = {}


def disk_cache() -> DiskCache | None:
    """Return this process's cache, opened (and complained about) once per folder."""
    where = (default_path(), size_limit())
    if where not in _opened:
        _opened[where] = DiskCache.open()
    return _opened[where]
