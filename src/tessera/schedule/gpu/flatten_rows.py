"""Computes elementwise functions of short or odd rows as functions of one long row.

Rows of 11 elements fill no access of 16 bytes, and rows of an odd length begin at any element, so that accesses move
one element each; a tile with a row of 11 has room for 16. Where the tensors have no gaps, elements of all rows lie one
after the other. A program takes as many as a thread block moves well, whatever rows they are of (`ir/flattening.py`),
and finds the row and column of an element for what belongs to one of them.

Before::

    grid(%A, %B) by [128, 16] { %x = load X[%i, %j] [128, 16]; %b = load Y[%j] [16]; store add(%x, repeat %b), Z }

After, when X and Z have no gaps::

    grid(%A * %B) by [2048] { %x = load_flat X[%n] [2048]; %b = gather Y[(%n + 0..2047) mod %B]; ... store_flat Z }

Each launch decides from sizes and strides.
"""

from __future__ import annotations

from math import gcd
from typing import ClassVar

from xdsl.ir import SSAValue
from xdsl.rewriter import InsertPoint

from tessera.data import dataclass
from tessera.ir.flattening import Flat
from tessera.ir.inserter import Inserter
from tessera.ir.notes import Unfit, note
from tessera.ir.tile.elementwise import CastOp
from tessera.ir.tile.memory import LoadOp, StoreOp
from tessera.ir.tile.structure import GridOp, KernelOp, StrideOp
from tessera.ir.types import index
from tessera.lower.simt.placement import ACCESS_BYTES
from tessera.schedule.launch_guards import all_are, at_least, put_beside
from tessera.schedule.scheduled_pass import GridPass

ELEMENTS = 2048
"""Of a program."""
MOST_ELEMENTS = 1 << 31
"""Places are divided by 32-bit arithmetic, as that of 64 bits is slow on GPUs."""


@dataclass(frozen=True)
class FlattenRowsPass(GridPass):
    """Lets programs of elementwise launches take neighbours in memory, across rows.

    Args:
        target: the GPU.
        knobs: `batch` and `num_warps` belong to blocks as they are written.
    """

    name: ClassVar[str] = "flatten-rows"

    def rewrite(self, kernel: KernelOp, grid: GridOp) -> None:
        """Put a launch over one row before that over boxes, for tensors without gaps."""
        if self.knobs.batch or self.knobs.num_warps or grid.guard is not None or len(grid.extents) < 2:
            return
        try:
            flat = Flat(kernel, grid)
        except Unfit:
            return
        if not any(_pays(kernel, op) for op in flat.whole):
            return
        insert = Inserter(InsertPoint.before(grid), grid)
        sizes, total = list(grid.extents), grid.extents[0]
        for size in sizes[1:]:
            total = insert.binary("mul", total, size)
        step = ACCESS_BYTES // min(op.element_bytes for op in flat.whole)
        conditions = [(at_least(insert, sizes[-1], step), True), (at_least(insert, total, MOST_ELEMENTS), False)]
        conditions += [(each, True) for each in _without_gaps(insert, kernel, flat, sizes)]
        guard = all_are(insert, conditions)
        if not isinstance(guard, SSAValue):
            return
        new = flat.launch(total, sizes, ELEMENTS, step, guard)
        note(new, "flat", [f"tensors without gaps are one row, of which a program computes {ELEMENTS} elements"])
        put_beside(grid, new, insert.binary("sub", insert.constant(1), guard))


def _pays(kernel: KernelOp, op: LoadOp | StoreOp) -> bool:
    """Return whether accesses to a tensor move more as one row than of rows that begin where strides say."""
    info, width = kernel.info_of(op.tensor), op.element_bytes
    row = gcd(ACCESS_BYTES, info.align)
    steps = [info.stride_divisor(axis) * width for axis in range(len(info.strides) - 1)]
    return info.strides[-1] == 1 and gcd(row, *steps) < row


def _without_gaps(insert: Inserter, kernel: KernelOp, flat: Flat, sizes: list[SSAValue]) -> list[SSAValue | bool]:
    """Return the conditions that large tensors have no gaps."""
    found = list[SSAValue | bool]()
    for tensor in dict.fromkeys(op.tensor for op in flat.whole):
        behind = sizes[-1]
        found.append(kernel.info_of(tensor).strides[-1] == 1)
        for axis in reversed(range(len(sizes) - 1)):
            stride = insert.value(StrideOp(tensor, axis))
            found.append(insert.value(CastOp(insert.binary("eq", stride, behind), index)))
            behind = insert.binary("mul", behind, sizes[axis])
    return found
