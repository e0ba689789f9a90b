"""Which loop of a launch a schedule is about."""

from __future__ import annotations

from xdsl.dialects import scf

from tessera.ir.notes import Unfit
from tessera.ir.tile.structure import GridOp


def only_loop(grid: GridOp) -> scf.ForOp:
    """Return the loop of a launch.

    Raises:
        Unfit: it has none, or several.
    """
    loops = [op for op in grid.body.block.ops if isinstance(op, scf.ForOp)]
    if len(loops) != 1:
        raise Unfit("the grid does not have exactly one outermost loop")
    return loops[0]
