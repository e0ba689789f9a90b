"""Library ops, written in the public language only. `from tessera import ops as op`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tessera.ops import epilogue, linalg, norm, reduce, scan
    from tessera.ops.softmaxes import log_softmax, logsumexp, softmax

FAMILIES = ("epilogue", "linalg", "norm", "reduce", "scan", "softmaxes")
"""Modules of ops, one a family."""

_NAMES = {"log_softmax": "softmaxes", "logsumexp": "softmaxes", "softmax": "softmaxes"}
"""Ops that stand here by name, and their families. A module of such a name would hide the op."""

__all__ = ["epilogue", "linalg", "log_softmax", "logsumexp", "norm", "reduce", "scan", "softmax"]


def __getattr__(name: str) -> Any:
    """Import a family of ops when it, or an op of it, is first asked for."""
    if name in FAMILIES:
        return import_module(f"tessera.ops.{name}")
    if name in _NAMES:
        return getattr(import_module(f"tessera.ops.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'tessera.ops' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
