"""Ops that the last bit of a float decides: whole numbers and comparisons."""

from __future__ import annotations

from xdsl.ir import Operation

from tessera.ir.graph.points import CastOp, MapOp
from tessera.ir.graph.types import array_type
from tessera.ir.graph.views import BroadcastOp, ReshapeOp, TransposeOp

WHOLE = ("floor", "ceil", "round", "trunc", "floordiv", "mod")
"""Functions that make floating point numbers whole."""
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def makes_whole(op: Operation) -> bool:
    """Return whether an op makes whole numbers of floats: the last bit of one decides which."""
    if not isinstance(op, MapOp | CastOp) or not array_type(op.operands[0]).dtype.is_float:
        return False
    return op.fn.data in WHOLE if isinstance(op, MapOp) else array_type(op.result).dtype.is_int


def compares(op: Operation) -> bool:
    """Return whether an op compares floats."""
    return isinstance(op, MapOp) and op.fn.data in COMPARISONS and array_type(op.args[0]).dtype.is_float


def maps_before(op: Operation, most: int = 64) -> list[Operation]:
    """Return the maps and casts that an op follows from, through views, the nearest first.

    Args:
        op: the op.
        most: how many are looked at.
    """
    found = dict[Operation, None]()
    work = [*op.operands]
    while work and len(found) < most:
        owner = work.pop(0).owner
        if isinstance(owner, MapOp | CastOp | BroadcastOp | TransposeOp | ReshapeOp) and owner not in found:
            found[owner] = None
            work += owner.operands
    return [one for one in found if isinstance(one, MapOp | CastOp)]
