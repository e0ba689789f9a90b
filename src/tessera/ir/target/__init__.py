"""TIR-T: the `tessera_target` dialect. One file per op family; the dialect collects what the files define."""

from __future__ import annotations

from functools import cache

from xdsl.ir import Dialect

from tessera.ir.collect import dialect_of


@cache
def target_dialect() -> Dialect:
    """Return the dialect, with every op and type that a file of this folder defines."""
    return dialect_of("tessera_target", __name__)
