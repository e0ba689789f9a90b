"""Graph IR: the `tessera_graph` dialect, of whole arrays. One file per op family, as in `ir/tile`."""

from __future__ import annotations

from functools import cache

from xdsl.ir import Dialect

from tessera.ir.collect import dialect_of


@cache
def graph_dialect() -> Dialect:
    """Return the dialect, with every op and type that a file of this folder defines."""
    return dialect_of("tessera_graph", __name__)
