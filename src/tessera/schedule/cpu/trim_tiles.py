"""Decides where tiles are computed as far as they are needed: up to the end of the tensor that they are stored to.

The last program of a dimension stores as much of its tile as the tensor has: with 64 queries in blocks of 128, half of
it. What leads to the other half, through products, reductions of rows and loops, is not computed either.
"""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from tessera.data import dataclass
from tessera.ir import decisions
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.reduce import ReduceOp
from tessera.ir.tile.structure import GridOp, KernelOp
from tessera.ir.tile.types import TileType
from tessera.ir.walking import ops_in
from tessera.lower.facts import divisor
from tessera.lower.vector.needs import Needs
from tessera.schedule.cpu.cpu_pass import CpuPass
from tessera.schedule.scheduled_pass import launches


@dataclass(frozen=True)
class TrimTilesPass(CpuPass):
    """Writes `tessera_schedule.trim` on launches with such tiles: products, reductions, and what loops carry.

    Args:
        target: the CPU.
        knobs: `trim` forces the choice.
    """

    name: ClassVar[str] = "trim-tiles"

    def apply(self, module: ModuleOp) -> None:
        """Annotate the launches of every kernel of the module."""
        for kernel in [op for op in module.ops if isinstance(op, KernelOp)] if self.knobs.trim != 0 else []:
            for unit in launches(kernel):
                kept = [result for op in ops_in(unit) if isinstance(op, _KEEPING) for result in op.results]
                if _cut(kernel, unit, [value for value in kept if isinstance(value.type, TileType)]):
                    decisions.TRIM.write(unit)


_KEEPING = (MmaOp, ReduceOp, scf.ForOp, scf.IfOp)
"""Ops whose tiles are kept in memory before they are stored."""


def _cut(kernel: KernelOp, unit: GridOp | KernelOp, values: list[SSAValue]) -> bool:
    """Return whether some of these tiles are needed in part only."""
    known: dict[SSAValue, int] = {}
    return bool(values) and Needs(kernel, unit.body.block, lambda value: divisor(known, kernel, value)).cut(values)
