"""Library ops, written in the public language only. `from tessera import ops as op`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tessera.ops import epilogue, linalg, norm

FAMILIES = ("epilogue", "linalg", "norm")
"""Modules of ops, one a family."""

__all__ = ["epilogue", "linalg", "norm"]


def __getattr__(name: str) -> Any:
    """Import a family of ops when it is first asked for."""
    if name in FAMILIES:
        return import_module(f"tessera.ops.{name}")
    raise AttributeError(f"module 'tessera.ops' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
