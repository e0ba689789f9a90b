"""The runtime's own machine code, the compiled entry and the worker pool: compiled at most once for a machine."""

from __future__ import annotations

from tessera.digest import sha256
from tessera.driver.cache import disk_cache
from tessera.runtime.identity import host_identity
from tessera.runtime.platforms import LoadedCode, host_platform


def load_native(name: str) -> LoadedCode:
    """Return a part of the runtime, loaded from the disk cache or compiled.

    Args:
        name: `entry`, `pool`, or that of a platform, for what starts launches there.
    """
    host = host_platform()
    disk = disk_cache()
    key = ""
    code: bytes | None = None
    if disk is not None:
        key = sha256(f"{name}\0{disk.compiler_hash()}\0{host_identity()}".encode()).hexdigest()
        code = disk.find_blob(key)
    if code is None:
        code = host.native_code(name)
        if disk is not None:
            disk.store_blob(key, code)
    return host.load(code)


def load_pool() -> LoadedCode:
    """Return the worker pool's code."""
    return load_native("pool")
