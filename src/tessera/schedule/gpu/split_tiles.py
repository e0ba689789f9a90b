"""Cuts the tiles of products whose sizes are no powers of two into parts whose sizes are, so that nothing is padded.

Registers, panels of shared memory and matrix instructions come in powers of two. A tile of 96 x 192 with steps of 48
terms is computed as tiles of 64 and 32 rows by 128 and 64 columns, each of which sums over 32 and then over 16 terms;
so are the heads of attention of 80 or 96 elements. What the dimensions of products share with other tiles is cut with
them (`ir/splitting.py`). Sizes that are no sum of few powers of two grow to the next one that is, where tensors end
with the tiles (`ir/growing.py`): heads of 88 elements are computed as 64 and 32, of which the last 8 are zeros.

Before::

    %a = load %A[%m, %k] [128, 64]
    %b = load %B[%k, %n] [64, 96]
    %next = mma %a, %b, %acc

After::

    %a = load %A[%m, %k] [128, 64]
    %b0 = load %B[%k, %n] [64, 64]
    %b1 = load %B[%k, %n + 64] [64, 32]
    %next0 = mma %a, %b0, %acc0
    %next1 = mma %a, %b1, %acc1
"""

from __future__ import annotations

from math import prod
from typing import ClassVar

from xdsl.rewriter import InsertPoint, Rewriter

from tessera.data import dataclass
from tessera.ir.growing import fixed_dimensions
from tessera.ir.notes import note
from tessera.ir.splitting import Axis, Dimensions, Splitter
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.structure import GridOp, KernelOp
from tessera.ir.tile.types import TileType, element_of, shape_of
from tessera.ir.types import dtype_of
from tessera.ir.walking import ops_in
from tessera.schedule.products import (
    LEAST_PART,
    LEAST_TERMS_BYTES,
    MOST_PARTS,
    MOST_PIECES,
    PART_COST,
    grown_parts,
    has_roles,
    parts_of,
)
from tessera.schedule.scheduled_pass import GridPass


@dataclass(frozen=True)
class SplitTilesPass(GridPass):
    """Cuts tiles of products into parts."""

    name: ClassVar[str] = "split-tiles"

    def rewrite(self, kernel: KernelOp, grid: GridOp) -> None:
        """Cut what can be cut."""
        self.cut(grid)

    def cut(self, grid: GridOp) -> GridOp:
        """Cut what can be cut, and note what cannot, and why; return the launch that takes the place of this one."""
        products = [op for op in ops_in(grid) if isinstance(op, MmaOp)]
        if not any(_odd_axes(op) for op in products):
            return grid
        dimensions = Dimensions(grid)
        cuts, notes = self._cuts(products, dimensions, fixed_dimensions(grid, dimensions))
        pieces = max(
            prod(len(cuts.get(dimension, (0,))) for dimension in _dimensions(op, dimensions)) for op in products
        )
        if pieces > MOST_PIECES:
            cuts, notes = {}, [f"one product would become {pieces}: tiles are padded to powers of two"]
        if cuts:
            new = Splitter(dimensions, cuts).grid_of_parts(grid)
            Rewriter.insert_op(new, InsertPoint.before(grid))
            Rewriter.erase_op(grid)
            grid = new
        note(grid, "tiles", notes)
        return grid

    def _cuts(
        self, products: list[MmaOp], dimensions: Dimensions, fixed: set[Axis]
    ) -> tuple[dict[Axis, tuple[int, ...]], list[str]]:
        """Return the parts of the dimensions of products that can be cut, and a note on each dimension."""
        least, sizes = dict[Axis, int](), dict[Axis, int]()
        for op in products:
            for value, axis in _odd_axes(op):
                dimension = dimensions.of(value, axis)
                terms = value is op.a or (dimension not in fixed and has_roles(self.target))
                smallest = LEAST_TERMS_BYTES // dtype_of(element_of(op.a.type)).bytes if terms else LEAST_PART
                least[dimension] = max(least.get(dimension, 1), smallest)
                sizes[dimension] = shape_of(value.type)[axis]
        cuts, notes = dict[Axis, tuple[int, ...]](), list[str]()
        for dimension, size in sizes.items():
            reason, named = dimensions.why_whole(dimension), f"{size} elements of a product"
            grows = reason is None and dimension not in fixed
            cost = PART_COST if has_roles(self.target) else 0
            parts = grown_parts(size, least[dimension], cost) if grows else parts_of(size, least[dimension])
            if parts is None or reason is not None:
                why = reason or f"no sum of at most {MOST_PARTS} powers of two from {least[dimension]} on"
                notes.append(f"{named} take the place of {1 << (size - 1).bit_length()}: {why}")
            else:
                cuts[dimension] = parts
                zeros = f", the last {sum(parts) - size} of them zeros" if sum(parts) > size else ""
                notes.append(f"{named} are computed as {' + '.join(map(str, parts))}{zeros}")
        return cuts, list(dict.fromkeys(notes))


def _axes(op: MmaOp) -> list[Axis]:
    """Return where the rows, the columns and the terms of a product are found."""
    return [(op.acc, 0), (op.acc, 1), (op.a, 1)]


def _odd_axes(op: MmaOp) -> list[Axis]:
    """Return the axes of a product of matrices whose sizes are no powers of two."""
    if any(not isinstance(value.type, TileType) or value.type.rank != 2 for value in (op.a, op.b, op.acc)):
        return []
    return [(value, axis) for value, axis in _axes(op) if (size := shape_of(value.type)[axis]) & (size - 1)]


def _dimensions(op: MmaOp, dimensions: Dimensions) -> set[Axis]:
    return {dimensions.of(*axis) for axis in _odd_axes(op)}
