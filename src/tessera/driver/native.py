"""The runtime's own machine code, the compiled entry and the worker pool: compiled at most once for a machine."""

from __future__ import annotations

from collections.abc import Callable

from tessera.digest import sha256
from tessera.driver.cache import disk_cache
from tessera.runtime.identity import host_identity
from tessera.runtime.platforms import LoadedCode, host_platform


def kept(name: str, make: Callable[[], bytes]) -> bytes:
    """Return what is the same for all processes of a machine, from the disk cache or made.

    Args:
        name: what it is.
        make: makes it.
    """
    disk = disk_cache()
    if disk is None:
        return make()
    key = sha256(f"{name}\0{disk.compiler_hash()}\0{host_identity()}".encode()).hexdigest()
    found = disk.find_blob(key)
    if found is None:
        found = make()
        disk.store_blob(key, found)
    return found


def load_native(name: str) -> LoadedCode:
    """Return a part of the runtime, loaded from the disk cache or compiled.

    Args:
        name: `entry`, `pool`, `walk`, or that of a platform, for what starts launches there.
    """
    host = host_platform()
    return host.load(kept(name, lambda: host.native_code(name)))


def load_pool() -> LoadedCode:
    """Return the worker pool's code."""
    return load_native("pool")
