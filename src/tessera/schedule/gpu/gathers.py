"""Programs that gather many times: each gather is addresses and accesses of its own, whose code is long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import prod

from xdsl.dialects import scf
from xdsl.ir import Block, Operation

from tessera.ir.tile.memory import GatherOp
from tessera.ir.tile.types import TileType

MANY = 4
"""Gathers of the largest tiles from which on code is kept short."""


def are_many(ops: Iterable[Operation], elements: int) -> bool:
    """Return whether one block of a program, loops apart, has many gathers of its largest tiles.

    Args:
        ops: of the program.
        elements: of its largest tiles.
    """
    return most_together(ops, elements) >= MANY


def most_together(ops: Iterable[Operation], elements: int) -> int:
    """Return how many gathers of its largest tiles one block of a program has, loops apart.

    Args:
        ops: of the program.
        elements: of its largest tiles.
    """
    together = Counter[Block | None]()
    for op in ops:
        type_ = op.result.type if isinstance(op, GatherOp) else None
        if isinstance(type_, TileType) and prod(type_.shape) == elements:
            together[op.parent_block()] += not isinstance(op.parent_op(), scf.ForOp)
    return max(together.values(), default=0)
