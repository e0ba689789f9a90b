"""Decides which boxes the next program loads that this one prefetches while it works on its own.

A program that reads a row several times, to reduce it and then to use it, leaves the memory idle while it computes: the
hardware follows one stream of addresses, and each row begins a new one. Programs run in the order of their numbers, so
the rows that the next one reads are known. So are those of programs that walk along tiles of several rows: each row is
a stream of its own, too short for the hardware to follow.
"""

from __future__ import annotations

from math import prod
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp

from tessera.data import dataclass
from tessera.ir import decisions
from tessera.ir.tile.memory import LoadOp
from tessera.ir.tile.structure import GridOp, KernelOp
from tessera.ir.tile.types import TileType
from tessera.ir.types import dtype_of
from tessera.schedule.cpu.cpu_pass import CpuPass

LEAST_BYTES = 2 << 10
"""Shorter rows are read ahead by the hardware as they follow one another."""
MOST_BYTES = 128 << 10
"""Bytes that one program may prefetch: they must stay in the second-level cache until they are read."""


@dataclass(frozen=True)
class PrefetchBoxesPass(CpuPass):
    """Writes `tessera_schedule.prefetch_box` on loads.

    Args:
        target: the CPU.
        knobs: `prefetch` forces the choice.
    """

    name: ClassVar[str] = "prefetch-boxes"

    def apply(self, module: ModuleOp) -> None:
        """Annotate the loads of every kernel of the module that each program runs once."""
        for kernel in [op for op in module.ops if isinstance(op, KernelOp)] if self.knobs.prefetch != 0 else []:
            for grid in [op for op in kernel.body.block.ops if isinstance(op, GridOp)]:
                for op in [op for op in grid.body.block.ops if isinstance(op, LoadOp)]:
                    if grid.block_sizes and _pays(kernel, grid, op):
                        decisions.PREFETCH_BOX.write(op)


def _pays(kernel: KernelOp, grid: GridOp, op: LoadOp) -> bool:
    """Return whether the next program loads another box, of a size and shape that the hardware does not read ahead."""
    type_, kept = op.result.type, op.kept
    if not isinstance(type_, TileType) or op.mask is not None or kernel.info_of(op.tensor).strides[kept[-1]] != 1:
        return False
    fastest, count = grid.body.block.args[-1], prod(op.size_list)
    axes = [axis for axis, offset in enumerate(op.offsets) if offset is fastest]
    if len(axes) != 1 or not LEAST_BYTES <= count * dtype_of(type_.element).bytes <= MOST_BYTES:
        return False
    return axes[0] != kept[-1] or count != op.size_list[axes[0]]  # one row that goes on is a stream that it follows
