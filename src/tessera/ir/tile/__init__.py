"""TIR-H: the `tessera_tile` dialect. One file per op family; the dialect collects what the files define."""

from __future__ import annotations

from functools import cache

from xdsl.ir import Dialect

from tessera.ir.collect import dialect_of


@cache
def tile_dialect() -> Dialect:
    """Return the dialect, with every op and type that a file of this folder defines."""
    return dialect_of("tessera_tile", __name__, extra=("tessera.ir.types",))
