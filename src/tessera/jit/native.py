"""The runtime's own machine code, the compiled entry and the worker pool: compiled at most once for a machine."""

from __future__ import annotations

import hashlib
import importlib

from tessera.errors import DeviceError
from tessera.jit.cache import disk_cache
from tessera.jit.version import host_identity
from tessera.runtime.pool import LoadedCode
from tessera.target.artifact import Artifact


def load_object(code: bytes) -> LoadedCode:
    """Make CPU object code executable."""
    from tessera.backends.cpu import load_object as load  # llvmlite takes 40 ms to import

    return load(code)


def check_cpu(artifact: Artifact) -> None:
    """Check that this CPU can run an artefact's code.

    Raises:
        DeviceError: `wrong-cpu`, naming the features that are missing.
    """
    from tessera.backends.cpu import missing_features

    missing = missing_features(artifact.requires)
    if missing:
        raise DeviceError(
            f"{artifact.name} was compiled for {artifact.target}; this CPU has no {', '.join(missing)}",
            code="wrong-cpu", help='compile it on this machine, or for a target that all have, such as "x86-64-v3"',
        )  # fmt: skip


def load_native(name: str) -> LoadedCode:
    """Return a part of the runtime, loaded from the disk cache or compiled.

    Args:
        name: `entry` or `pool`.
    """
    disk = disk_cache()
    key = ""
    code: bytes | None = None
    if disk is not None:
        key = hashlib.sha256(f"{name}\0{disk.compiler_hash()}\0{host_identity()}".encode()).hexdigest()
        code = disk.find_blob(key)
    if code is None:
        code = bytes(getattr(importlib.import_module("tessera.backends.entry"), f"compile_{name}")())
        if disk is not None:
            disk.store_blob(key, code)
    return load_object(code)


def load_pool() -> LoadedCode:
    """Return the worker pool's code."""
    return load_native("pool")
