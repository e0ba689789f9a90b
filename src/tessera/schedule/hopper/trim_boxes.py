"""Marks loads of rows and columns that nobody needs past the end of their tensor.

    grid(%M, %N) by [128, 256] { ... load A[%m, %k] [128, 64]; load B[%k, %n] [64, 256]; mma; store C[%m, %n] }
  becomes
    grid(%M, %N) by [128, 256] { ... load A ... {loose_end = 1}; load B ... {loose_end = 2}; mma; store C[%m, %n] }

The copy engine fills what a box has outside of a tensor with zeros, which takes it longer than data. A column of B past
the end counts only for the same column of results, which are not stored: it may hold anything. That is so where each
element of what a program stores depends on its own row and column alone (`ir/regridding.py`), and the tensor that is
loaded ends where the grid does. Terms of sums past the end are zeros as before.
"""

from __future__ import annotations

from typing import ClassVar

from tessera.data import dataclass
from tessera.ir import decisions
from tessera.ir.batching import names_size_of
from tessera.ir.notes import Unfit
from tessera.ir.regridding import Regrid
from tessera.ir.tile.memory import LoadOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.structure import GridOp, KernelOp
from tessera.ir.walking import ops_in
from tessera.schedule.products import has_roles
from tessera.schedule.scheduled_pass import GridPass


@dataclass(frozen=True)
class TrimBoxesPass(GridPass):
    """Marks the loads of launches that compute products."""

    name: ClassVar[str] = "trim-boxes"

    def rewrite(self, kernel: KernelOp, grid: GridOp) -> None:
        """Mark the loads of a launch."""
        if not has_roles(self.target) or not any(isinstance(op, MmaOp) for op in ops_in(grid)):
            return
        try:
            regrid = Regrid(kernel, grid)
        except Unfit:
            return
        for load in [op for op in ops_in(grid) if isinstance(op, LoadOp)]:
            ends = [at for axis, at in enumerate(load.kept) if _is_loose(regrid, load, axis)]
            if len(ends) == 1:
                decisions.LOOSE_END.write(load, ends[0] + 1)


def _is_loose(regrid: Regrid, load: LoadOp, axis: int) -> bool:
    """Return whether a load's tile runs along a dimension of the grid, and its tensor ends there with the grid."""
    number = regrid.owner(load.result, axis)
    if number is None:
        return False
    return names_size_of(regrid.kernel, regrid.grid.extents[number], load.tensor, load.kept[axis])
