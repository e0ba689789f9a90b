"""What is known at compile time of parts of tiles: where they start, and that they stay inside."""

from __future__ import annotations

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue

from tessera.ir.tile.elementwise import CastOp, ElementwiseOp, constant_value
from tessera.ir.tile.parts import PartOp
from tessera.ir.tile.types import shape_of
from tessera.lower.facts import Range, value_range

DEPTH = 8
"""Steps of arithmetic back which the counters of loops are looked for."""


def constant_starts(op: PartOp) -> tuple[int | None, ...]:
    """Return where a part starts along each dimension, reduced to the tile's size where it wraps; None if unknown."""
    known = [constant_value(start) for start in op.starts]
    sizes = shape_of(op.source.type)
    return tuple(
        None if start is None else int(start) % sizes[axis] if axis in op.wrapped else int(start)
        for axis, start in enumerate(known)
    )


def is_whole(op: PartOp, axis: int) -> bool:
    """Return whether all of a dimension is read in its order."""
    whole = op.step_list[axis] == 1 and op.sizes[axis] == shape_of(op.source.type)[axis]
    return whole and constant_starts(op)[axis] == 0


def starts_with_all(op: PartOp) -> bool:
    """Return whether a part is all of a tile, perhaps with zeros behind it."""
    longer = all(size >= whole for size, whole in zip(op.sizes, shape_of(op.source.type), strict=True))
    plain = not op.wrapped and all(step == 1 for step in op.step_list)
    return longer and plain and bool(shape_of(op.result.type)) and all(start == 0 for start in constant_starts(op))


def stays_inside(op: PartOp, axis: int) -> bool:
    """Return whether no element outside of the tile is read along a dimension."""
    if axis in op.wrapped:
        return True
    size, reach = shape_of(op.source.type)[axis], op.step_list[axis] * (op.sizes[axis] - 1)
    low, high = value_range(op.starts[axis], _counters(op.starts[axis]))
    return low + min(reach, 0) >= 0 and high + max(reach, 0) < size


def _counters(value: SSAValue) -> dict[SSAValue, Range]:
    """Return the first and last number of each loop's counter that a scalar is computed from, where that is known."""
    found: dict[SSAValue, Range] = {}
    work = [(value, DEPTH)]
    while work:
        part, depth = work.pop()
        owner = part.owner
        if isinstance(owner, Block):
            last = _last(owner.parent_op(), part)
            if last is not None:
                found[part] = last
        elif isinstance(owner, CastOp | ElementwiseOp) and depth:
            work += [(operand, depth - 1) for operand in owner.operands]
    return found


def _last(loop: Operation | None, value: SSAValue) -> Range | None:
    """Return the range of a counter with constant bounds: its last number is not the bound less one, with a step."""
    if not isinstance(loop, scf.ForOp) or loop.body.block.args[0] is not value:
        return None
    low, end, step = (constant_value(bound) for bound in (loop.lb, loop.ub, loop.step))
    if low is None or end is None or step is None or step < 1:
        return None
    count = max(-(-(int(end) - int(low)) // int(step)), 1)
    return int(low), int(low) + (count - 1) * int(step)
