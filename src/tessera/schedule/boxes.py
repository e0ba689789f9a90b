"""Which tiles that a loop loads the copy engine can fetch, for products to read or for threads."""

from __future__ import annotations

from xdsl.dialects import scf

from tessera.ir.tile.memory import LoadOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.structure import KernelOp
from tessera.ir.tile.types import TileType
from tessera.schedule.copies import movable
from tessera.schedule.tensor_maps import Unfit, check_tensor

PHASE_ROWS = 8
"""Rows after which the swizzle of a panel repeats: a stage holds whole repeats."""


def ahead_of(op: LoadOp, loop: scf.ForOp) -> bool:
    """Return whether a load of a loop's body can be done for later iterations."""
    return op.parent_op() is loop and all(movable(offset, loop) for offset in op.offsets)


def name_of(kernel: KernelOp, op: LoadOp) -> str:
    """Return the name of the tensor that is loaded from."""
    return kernel.info_of(op.tensor).name


def check_operand(kernel: KernelOp, op: LoadOp) -> None:
    """Check that the copy engine can fetch a tile as warpgroup instructions read it: in whole panels.

    Raises:
        Unfit: it cannot.
    """
    assert isinstance(op.result.type, TileType)
    dtype = op.result.type.dtype
    contiguous = check_tensor(kernel, op.tensor, op.kept, op.size_list, dtype)
    if dtype.bytes == 1 and contiguous != _k_dimension(op):
        name = name_of(kernel, op)
        raise Unfit(f"8-bit operands are read along K; {name} is contiguous along the other dimension")


def check_box(kernel: KernelOp, op: LoadOp) -> None:
    """Check that the copy engine can fetch a tile that threads then read from shared memory.

    Raises:
        Unfit: it cannot.
    """
    assert isinstance(op.result.type, TileType)
    if op.mask is not None or op.fill is not None:
        raise Unfit(f"the tile of {name_of(kernel, op)} is loaded under a mask or with a fill")
    if op.result.type.rank != 2:
        raise Unfit(f"the tile of {name_of(kernel, op)} is of rank {op.result.type.rank}, not 2")
    contiguous = check_tensor(kernel, op.tensor, op.kept, op.size_list, op.result.type.dtype, narrow=True)
    rows = next(size for axis, size in enumerate(op.size_list) if axis in op.kept and axis != contiguous)
    if rows % PHASE_ROWS:
        raise Unfit(f"the tile of {name_of(kernel, op)} has {rows} rows, no multiple of {PHASE_ROWS}")


def _k_dimension(op: LoadOp) -> int:
    """Return the tensor dimension of a load that its first product sums over."""
    use = next(iter(op.result.uses))
    axis, user = 0, use
    transposed = not isinstance(use.operation, MmaOp)
    if transposed:
        user = next(iter(use.operation.results[0].uses))
    axis = 1 if user.index == 0 else 0
    return op.kept[1 - axis if transposed else axis]
