"""When a launch has programs: conditions on sizes, which are computed where they are not known.

A pass that has several ways to do the work of one launch leaves a launch for each, of which one has programs for any
sizes (`GridOp`'s guard is 1 for it and 0 for the others).
"""

from __future__ import annotations

from collections.abc import Iterable

from xdsl.ir import SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from tessera.ir.inserter import Inserter
from tessera.ir.tile.elementwise import constant_value
from tessera.ir.tile.structure import GridOp


def at_least(insert: Inserter, extent: SSAValue, least: int) -> SSAValue | bool:
    """Return whether a size is at least so large, as 1 or 0 where only a launch knows.

    Args:
        insert: where to add ops.
        extent: the size.
        least: 1 or more.
    """
    size = constant_value(extent)
    if size is not None:
        return size >= least
    return insert.binary("minimum", insert.binary("floordiv", extent, insert.constant(least)), insert.constant(1))


def all_are(insert: Inserter, conditions: Iterable[tuple[SSAValue | bool, bool]]) -> SSAValue | int:
    """Return whether conditions are as wanted: 1 or 0, or what a launch computes.

    Args:
        insert: where to add ops.
        conditions: what `at_least` returned, each with what it should be.
    """
    found: SSAValue | None = None
    for condition, wanted in conditions:
        if isinstance(condition, bool):
            if condition != wanted:
                return 0
            continue
        value = condition if wanted else insert.binary("sub", insert.constant(1), condition)
        found = value if found is None else insert.binary("mul", found, value)
    return 1 if found is None else found


def put_beside(grid: GridOp, first: GridOp, guard: SSAValue) -> None:
    """Put a launch before another one, which from now on has programs where a condition holds.

    Args:
        grid: the launch that is there.
        first: a launch with a guard of its own, in no block.
        guard: the condition, computed before `grid`.
    """
    end = grid.next_op
    assert end is not None
    grid.detach()
    for launch in (first, grid.when(guard)):
        Rewriter.insert_op(launch, InsertPoint.before(end))
