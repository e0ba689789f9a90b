"""The CPU backend: TIR-T of the vector model to object code, for this machine or another.

Its parts load when they are asked for: a kernel from the disk cache needs the loader, not the compiler.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tessera.backends.cpu.compile import compile_cpu as compile_cpu
    from tessera.backends.cpu.compile import emit_llvm as emit_llvm
    from tessera.backends.cpu.compile import resume_cpu as resume_cpu
    from tessera.backends.cpu.compile import write_cpu as write_cpu
    from tessera.backends.cpu.features import missing_features as missing_features
    from tessera.backends.cpu.host import host_target as host_target
    from tessera.backends.cpu.loader import LoadedObject as LoadedObject
    from tessera.backends.cpu.loader import load_object as load_object

_HOMES = {
    "LoadedObject": "loader",
    "compile_cpu": "compile",
    "emit_llvm": "compile",
    "host_target": "host",
    "load_object": "loader",
    "missing_features": "features",
    "resume_cpu": "compile",
    "write_cpu": "compile",
}


def __getattr__(name: str) -> Any:
    """Import the part that defines `name`."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
