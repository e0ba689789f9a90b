"""Imports xDSL, whose dataclasses then share their methods: writing those took a fourth of a process's first kernel."""

from __future__ import annotations

from importlib import import_module

from tessera.data import shared_methods

_PARTS = ("xdsl.dialects.scf", "xdsl.pattern_rewriter", "xdsl.transforms.dead_code_elimination")
"""With what they import, all of xDSL that a compilation uses."""


def import_xdsl() -> None:
    """Import what a compilation uses of xDSL; call it before other modules of the compiler are imported."""
    with shared_methods("xdsl"):
        for part in _PARTS:
            import_module(part)
