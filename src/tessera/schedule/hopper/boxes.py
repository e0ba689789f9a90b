"""Which of the tiles that a loop loads the copy engine can fetch, for products or for threads to read."""

from __future__ import annotations

from xdsl.dialects import scf

from tessera.ir.loops import movable
from tessera.ir.notes import Unfit
from tessera.ir.tile.memory import LoadOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.structure import KernelOp
from tessera.ir.tile.types import TileType
from tessera.schedule.gpu.copies import stored_transposed
from tessera.schedule.hopper.limits import BOX_LIMIT, why_no_rows
from tessera.schedule.hopper.tensor_maps import check_tensor
from tessera.schedule.products import why_not_read
from tessera.target.fragments import PANEL_BYTES

PHASE_ROWS = 8
"""Rows after which the swizzle of a panel repeats: a stage holds whole repeats."""


def ahead_of(op: LoadOp, loop: scf.ForOp) -> bool:
    """Return whether a load of a loop's body can be issued for later iterations."""
    return op.parent_op() is loop and all(movable(offset, loop) for offset in op.offsets)


def name_of(kernel: KernelOp, op: LoadOp) -> str:
    """Return the name of the tensor that is loaded from."""
    return kernel.info_of(op.tensor).name


def check_copied(kernel: KernelOp, op: LoadOp) -> None:
    """Check that warpgroup instructions can read a tile as threads copy it to shared memory: as it lies.

    Raises:
        Unfit: they cannot.
    """
    assert isinstance(op.result.type, TileType)
    along, name, dtype = op.kept[0 if stored_transposed(kernel, op) else 1], name_of(kernel, op), op.result.type.dtype
    reason = why_no_rows(name, op.size_list[along] * dtype.bytes)
    if (reason := reason or why_not_read(name, dtype, k_dimensions(op) == {along})) is not None:
        raise Unfit(reason)


def check_operand(kernel: KernelOp, op: LoadOp) -> None:
    """Check that the copy engine can fetch a tile as warpgroup instructions read it: in whole panels.

    Raises:
        Unfit: it cannot.
    """
    assert isinstance(op.result.type, TileType)
    dtype = op.result.type.dtype
    contiguous = check_tensor(kernel, op.tensor, op.offsets, op.kept, op.size_list, dtype)
    if (reason := why_not_read(name_of(kernel, op), dtype, k_dimensions(op) == {contiguous})) is not None:
        raise Unfit(reason)


def check_box(kernel: KernelOp, op: LoadOp) -> None:
    """Check that the copy engine can fetch a tile that threads then read from shared memory.

    Raises:
        Unfit: it cannot.
    """
    assert isinstance(op.result.type, TileType)
    if op.mask is not None or op.fill is not None:
        raise Unfit(f"the tile of {name_of(kernel, op)} is loaded under a mask or with a fill")
    if op.result.type.rank not in (1, 2):
        raise Unfit(f"the tile of {name_of(kernel, op)} is of rank {op.result.type.rank}, not 1 or 2")
    dtype = op.result.type.dtype
    contiguous = check_tensor(kernel, op.tensor, op.offsets, op.kept, op.size_list, dtype, plain=True)
    if op.result.type.rank == 1:
        if not PANEL_BYTES < op.size_list[contiguous] * dtype.bytes <= BOX_LIMIT * dtype.bytes:
            raise Unfit(f"the tile of {name_of(kernel, op)} is no row that is longer than a panel and fits in a box")
        return
    rows = next(size for axis, size in enumerate(op.size_list) if axis in op.kept and axis != contiguous)
    if rows % PHASE_ROWS:
        raise Unfit(f"the tile of {name_of(kernel, op)} has {rows} rows, not a multiple of {PHASE_ROWS}")


def k_dimensions(op: LoadOp) -> set[int]:
    """Return the tensor dimensions of an operand that the products which read it sum over."""
    return {op.kept[int(first != transposed)] for _, first, transposed in _reads(op)}


def is_tf32(op: LoadOp) -> bool:
    """Return whether products read an operand in tf32, all of them."""
    return all(product.compute.data == "tf32" for product, _, _ in _reads(op))


def _reads(op: LoadOp) -> list[tuple[MmaOp, bool, bool]]:
    """Return the products that read an operand, whether as their first one, and whether transposed."""
    found: list[tuple[MmaOp, bool, bool]] = []
    ahead = [(use, False) for use in op.result.uses]
    for use, transposed in ahead:
        user = use.operation
        if isinstance(user, MmaOp):
            found.append((user, use.index == 0, transposed))
        else:
            ahead += [(after, not transposed) for after in user.results[0].uses]
    return found
