"""Loads rows that begin at any element, and are only reduced, from where accesses are aligned.

Rows of an odd number of elements begin anywhere, where an access moves a single element. Where a program has one such
row in registers, its tiles begin at the aligned place before the row, and reach behind its end: accesses move 16 bytes,
of which the first and the last one have elements around the row that reductions leave out. Others mostly lie as the row
that is loaded first: the launch looks, and shifts what it loads where they do not. So it does with weights.

Before::

    %x = load %X[%i, 0] [1, 4097] drop [0]
    %sum = reduce "sum" %x axis 0

After::

    %behind = misalignment %X[%i, 0]
    %x = load %X[%i, -%behind] [1, 4104] drop [0]
    %sum = reduce "sum" (where %behind <= arange < 4097 + %behind, %x, else 0) axis 0

Longer rows are computed chunk by chunk, which begin at such places as well (`chunk_tiles`), and of shorter ones a
program has several. Rows that are stored again stay: the registers that shifting takes leave room for fewer programs
(LayerNorm of rows of 4097 bf16 on an H200: 0.80 of a copy's rate, and 0.66 so; sums of rows of 5001 0.87, and 0.95).
"""

from __future__ import annotations

from math import prod
from typing import ClassVar

from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from tessera.data import dataclass
from tessera.ir.chunking import Aligned, Chunk
from tessera.ir.inserter import Inserter
from tessera.ir.long_tiles import STORES, Passes, Whole, passes_over
from tessera.ir.notes import note
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.structure import GridOp, KernelOp
from tessera.ir.tile.types import TileType, shape_of
from tessera.ir.walking import ops_in
from tessera.schedule.gpu.chunk_tiles import ELEMENTS, aligned_of
from tessera.schedule.scheduled_pass import GridPass

LEAST = 1024
"""Elements of a row: of shorter ones 16 bytes are too much of what a thread has."""


@dataclass(frozen=True)
class AlignRowsPass(GridPass):
    """Moves the tiles of rows that begin anywhere to where accesses are aligned.

    Args:
        target: the GPU.
        knobs: `chunk` is for rows as they are.
    """

    name: ClassVar[str] = "align-rows"

    def rewrite(self, kernel: KernelOp, grid: GridOp) -> None:
        """Move the tiles of a launch."""
        if self.knobs.chunk or any(isinstance(op, MmaOp) for op in ops_in(grid)):
            return
        sizes, seen = list[int](), set[SSAValue]()
        for tile in _rows(grid):
            if tile in seen:
                continue
            try:
                passes = passes_over(tile, shape_of(tile.type).index(max(shape_of(tile.type))))
            except Whole:
                continue
            seen.update(passes.axes)
            if (aligned := _aligned(kernel, grid, passes)) is not None:
                _move(passes, aligned)
                sizes.append(passes.size)
        if sizes:
            words = " and ".join(map(str, dict.fromkeys(sizes)))
            note(grid, "rows", [f"rows of {words} elements are loaded from where accesses are aligned"])


def _rows(grid: GridOp) -> list[SSAValue]:
    """Return the tiles of a launch that are one row, which registers hold; none where a program has larger tiles."""
    tiles = [value for op in ops_in(grid) for value in op.results if isinstance(value.type, TileType)]
    if any(prod(shape_of(tile.type)) > ELEMENTS for tile in tiles):
        return []
    return [tile for tile in tiles if LEAST < max(shape_of(tile.type)) == prod(shape_of(tile.type))]


def _aligned(kernel: KernelOp, grid: GridOp, passes: Passes) -> Aligned | None:
    """Return where accesses of a row are aligned; None where tiles that begin there are of no use."""
    if passes.block is not grid.body.block or any(isinstance(op, STORES) for op in passes.ops):
        return None
    if any(map(passes.scanned, passes.ops)) or not any(map(passes.reduced, passes.ops)):
        return None
    aligned = aligned_of(kernel, passes)
    # With what lies around a row, tiles take no more registers.
    fits = aligned is not None and passes.size + aligned.step <= 1 << (passes.size - 1).bit_length()
    return aligned if fits else None


def _move(passes: Passes, aligned: Aligned) -> None:
    """Compute tiles from the aligned place before them on."""
    first = passes.ops[0]
    assert isinstance(aligned.behind.owner, Operation)
    insert = Inserter(InsertPoint.after(aligned.behind.owner), first)
    at = insert.binary("sub", insert.constant(0), aligned.behind)
    size = -(-(passes.size + aligned.step - 1) // aligned.step) * aligned.step
    chunk = Chunk(passes, InsertPoint.before(first), at, size, aligned.boxes, early=aligned.step - 1)
    for op in passes.ops:
        chunk.point = InsertPoint.before(op)
        if passes.reduced(op):
            results = chunk.reduce(op, chunk.inside(op), op.axis.data)
            for old, new in zip(op.results, results, strict=True):
                old.replace_all_uses_with(new)
        else:
            chunk.write(op)
    for op in reversed(passes.ops):
        Rewriter.erase_op(op)
