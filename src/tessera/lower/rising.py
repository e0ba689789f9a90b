"""Which integers of a tile grow along a dimension, and what a combiner is when its elements come in that order.

The place of the largest element is found by a combiner that compares places where values are equal. Elements that a
thread combines from the first to the last need no such comparison.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import i1
from xdsl.ir import Block, Operation, SSAValue

from tessera.ir.tile.elementwise import ArangeOp, CastOp, ConstantOp, ElementwiseOp, SplatOp
from tessera.ir.tile.reduce import CombinedOp
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp
from tessera.ir.tile.types import element_of, shape_of
from tessera.ir.types import dtype_of
from tessera.lower.bounds import DEPTH, Bounds

_HOLDS = {"lt": True, "le": True, "ne": True, "gt": False, "ge": False, "eq": False}
"""Comparisons of an element with one that stands behind it."""


def rises(bounds: Bounds, value: SSAValue, axis: int) -> bool:
    """Return whether each element of a tile is known to be less than the next one along a dimension.

    Args:
        bounds: what is known of the kernel's integers.
        value: a tile.
        axis: the dimension.
    """
    for _ in range(DEPTH):
        owner = value.owner
        if not isinstance(owner, BroadcastOp) or shape_of(owner.source.type)[axis] != shape_of(value.type)[axis]:
            break
        value = owner.source
    return _counts(bounds, value, DEPTH)


def _counts(bounds: Bounds, value: SSAValue, deepest: int) -> bool:
    """Return whether the elements of a tile rise in row-major order."""
    owner = value.owner
    if isinstance(owner, ArangeOp):
        return shape_of(value.type)[0] <= 1 << dtype_of(element_of(value.type)).bits - 1
    if not deepest or not shape_of(value.type):
        return False
    if isinstance(owner, ReshapeOp):
        return _counts(bounds, owner.source, deepest - 1)
    if isinstance(owner, CastOp):
        whole = dtype_of(element_of(owner.source.type)).is_int and bounds.keeps_numbers(owner)
        return whole and _counts(bounds, owner.source, deepest - 1)
    if isinstance(owner, ElementwiseOp) and owner.fn.data == "add" and bounds.is_exact(owner):
        for counting, other in (owner.args, owner.args[::-1]):
            if isinstance(other.owner, SplatOp):
                return _counts(bounds, counting, deepest - 1)
    return False


def in_order(combiner: Block, rising: Sequence[int]) -> Block:
    """Return a combiner for elements on the left that stand before those on the right.

    Args:
        combiner: of elements of several tiles.
        rising: tiles whose elements rise along the dimension that is reduced.
    """
    tiles = len(combiner.args) // 2
    settled = [tile for tile in rising if _is_chosen(combiner, tile)]
    result = Block(arg_types=[arg.type for arg in combiner.args])
    made: dict[SSAValue, SSAValue] = {}
    made.update(zip(combiner.args, result.args, strict=True))
    sides: dict[SSAValue, SSAValue] = {combiner.args[tile]: combiner.args[tile + tiles] for tile in settled}
    for op in combiner.ops:
        known = _comparison(op, sides)
        copy = op.clone(made) if known is None else ConstantOp(known, i1)
        result.add_op(copy)
        made.update(zip(op.results, copy.results, strict=True))
    return result


def _is_chosen(combiner: Block, tile: int) -> bool:
    """Return whether a combiner gives one of a tile's two elements: then those behind are greater than what it gave."""
    end = combiner.last_op
    assert isinstance(end, CombinedOp)
    own = {combiner.args[tile], combiner.args[tile + len(combiner.args) // 2]}
    left = [end.values[tile]]
    while left:
        value = left.pop()
        if value in own:
            continue
        owner = value.owner
        if not (isinstance(owner, ElementwiseOp) and owner.fn.data in ("select", "minimum", "maximum")):
            return False
        left += owner.args[owner.fn.data == "select" :]
    return True


def _comparison(op: Operation, sides: dict[SSAValue, SSAValue]) -> bool | None:
    """Return what a comparison of the two elements of a rising tile gives, None for anything else."""
    if not isinstance(op, ElementwiseOp) or op.fn.data not in _HOLDS:
        return None
    left, right = op.args
    if sides.get(left) is right:
        return _HOLDS[op.fn.data]
    if sides.get(right) is left:
        return _HOLDS[op.fn.data] if op.fn.data in ("eq", "ne") else not _HOLDS[op.fn.data]
    return None
