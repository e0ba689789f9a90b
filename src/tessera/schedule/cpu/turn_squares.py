"""Decides where tiles that lie against the order of a loop are transposed in squares.

A loop goes along the last axis of what it computes. A tile whose neighbours in memory lie along the other axis would be
read element by element; so squares of as many rows as a vector has elements are read along their own order and
transposed in registers, where a loop, or the packing of an operand, meets such a tile.
"""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from tessera.data import dataclass
from tessera.ir import decisions
from tessera.ir.tile.structure import KernelOp
from tessera.ir.tile.types import TileType
from tessera.ir.walking import ops_in
from tessera.schedule.cpu.cpu_pass import CpuPass
from tessera.schedule.scheduled_pass import launches


@dataclass(frozen=True)
class TurnSquaresPass(CpuPass):
    """Writes `tessera_schedule.squares` on launches with matrices: only loops over these can meet such tiles.

    Args:
        target: the CPU.
        knobs: `squares` forces the choice.
    """

    name: ClassVar[str] = "turn-squares"

    def apply(self, module: ModuleOp) -> None:
        """Annotate the launches of every kernel of the module."""
        for kernel in [op for op in module.ops if isinstance(op, KernelOp)] if self.knobs.squares != 0 else []:
            for unit in launches(kernel):
                if any(_has_matrix(op) for op in ops_in(unit)):
                    decisions.SQUARES.write(unit)


def _has_matrix(op: Operation) -> bool:
    """Return whether an op takes or gives a tile of several rows and columns."""
    types = [value.type for value in (*op.operands, *op.results)]
    return any(isinstance(type_, TileType) and sum(size > 1 for size in type_.shape) > 1 for type_ in types)
