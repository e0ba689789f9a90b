"""Which copies fetch data that no other program of the launch fetches.

Such data passes through the L2 cache once and should be evicted before data that is used again. Whether a load fetches
such data often depends on sizes: with one tile of rows, each element of a product's right operand is fetched once.
"""

from __future__ import annotations

from xdsl.dialects.builtin import i1
from xdsl.ir import Block, BlockArgument, SSAValue

from tessera.ir.inserter import Inserter
from tessera.ir.tile.elementwise import ConstantOp, ElementwiseOp
from tessera.ir.tile.memory import LoadOp
from tessera.ir.tile.structure import GridOp
from tessera.schedule.hopper.pair_tiles import depends_on_rank
from tessera.schedule.hopper.rings import depends_on_group


def fetched_once(insert: Inserter, grid: GridOp, load: LoadOp) -> SSAValue:
    """Return, as a bool, whether the tiles of a grid fetch disjoint boxes by a load.

    They do where each dimension of the grid either moves the box by at least its size or has a single tile.

    Args:
        insert: where the bool is computed, before the roles.
        grid: the grid.
        load: the load, which the loop of a tile may do for one box after the other.
    """
    known: SSAValue | None = None
    moving = _moving(grid.body.block, load)
    for axis, (extent, block) in enumerate(zip(grid.extents, grid.block_sizes, strict=True)):
        if axis not in moving or moving[axis] > block:
            single = insert.binary("le", extent, insert.constant(block))
            known = single if known is None else insert.binary("and", known, single)
    return insert.value(ConstantOp(True, i1)) if known is None else known


def _moving(body: Block, load: LoadOp) -> dict[int, int]:
    """Return the grid's dimensions that are an offset of the load as they are, and the box's size there.

    A program of a cluster adds its rank times the box's size to where its cluster is, a group of consumers its number
    times that.
    """
    found: dict[int, int] = {}
    for offset, size in zip(load.offsets, load.size_list, strict=True):
        owner, start = offset.owner, offset
        if isinstance(owner, ElementwiseOp) and owner.fn.data == "add" and _is_own(owner.operands[1]):
            start = owner.operands[0]
        if isinstance(start, BlockArgument) and start.block is body:
            found[start.index] = size
    return found


def _is_own(value: SSAValue) -> bool:
    """Return whether a value tells the programs of a cluster apart, or groups of consumers."""
    return depends_on_rank(value) or depends_on_group(value)
