"""Identity of the compiler, for cache keys. Imports neither xDSL nor llvmlite."""

from __future__ import annotations

import os
from functools import cache

from tessera.digest import sha256

_PACKAGE = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))


def _source_files() -> list[tuple[str, int, int]]:
    """Return path, size and time of the package's source files, sorted."""
    found: list[tuple[str, int, int]] = []
    folders = [_PACKAGE]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                name = entry.name
                if name.endswith(".py"):
                    facts = entry.stat()
                    found.append((entry.path, facts.st_size, facts.st_mtime_ns))
                elif name != "__pycache__" and entry.is_dir():
                    folders.append(entry.path)
    found.sort()
    return found


@cache
def sources_stamp() -> str:
    """Return a hash of the package's file names, sizes and times: it changes when the sources may have.

    Reading 200 files takes longer than loading a cached kernel may; the stamp stands for their contents,
    which `sources_hash` reads when the stamp is new.
    """
    return sha256(repr(_source_files()).encode()).hexdigest()


def sources_hash() -> str:
    """Return a hash of the package's own sources: the compiler's version for caches.

    The generators this package depends on need no part in it: they are pinned, so a new one comes with new
    sources.
    """
    import hashlib  # OpenSSL is fast at megabytes

    digest = hashlib.sha256()
    start = len(_PACKAGE) + 1
    for path, size, _ in _source_files():
        digest.update(f"{path[start:]}\0{size}\0".encode())
        with open(path, "rb", buffering=0) as file:
            digest.update(file.readall())
    return digest.hexdigest()
