"""Questions about the loops of a launch that several passes ask, and arithmetic on their bounds."""

from __future__ import annotations

from xdsl.dialects import scf
from xdsl.ir import Block, SSAValue

from tessera.ir.tile.structure import GridOp
from tessera.schedule.copies import Inserter
from tessera.schedule.tensor_maps import Unfit


def only_loop(grid: GridOp) -> scf.ForOp:
    """Return the loop of a launch.

    Raises:
        Unfit: it has none, or several.
    """
    loops = [op for op in grid.body.block.ops if isinstance(op, scf.ForOp)]
    if len(loops) != 1:
        raise Unfit("the grid has not exactly one outermost loop")
    return loops[0]


def depends_on(value: SSAValue, block: Block) -> bool:
    """Return whether a value follows from a block's arguments: from where in the grid a program is."""
    owner = value.owner
    if isinstance(owner, Block):
        return owner is block
    return any(depends_on(operand, block) for operand in owner.operands)


def ceildiv(insert: Inserter, value: SSAValue, by: SSAValue, one: SSAValue) -> SSAValue:
    """Return `value / by`, rounded up."""
    return insert.binary("floordiv", insert.binary("add", value, insert.binary("sub", by, one)), by)
