"""Gives programs that reduce few rows longer rows, so that starting them is not the limit.

A program that sums eight rows of 128 columns moves 2 KB of bf16. A GPU starts programs no faster than it loads so much,
and what each computes before and after takes longer than its loads. Where all that a program does is the same for every
element along a dimension, its tiles can be longer there.

Before::

    grid(%columns) by [128] { %x = load %X[0, %j] [8, 128]; %sum = reduce "sum" %x axis 0; store %sum, %Y[%j] [128] }

After::

    grid(%columns) by [1024] { %x = load %X[0, %j] [8, 1024]; %sum = reduce "sum" %x axis 0; store %sum, %Y[%j] [1024] }

Programs whose boxes lie one after the other along the first dimension of their tiles are the matter of
`batch-programs`; those of fewer than 128 elements, too, as they may be all that there are.
"""

from __future__ import annotations

from typing import ClassVar

from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.traits import IsTerminator

from tessera.data import dataclass
from tessera.ir.attributes import ints
from tessera.ir.batching import largest_tile, moved_bytes
from tessera.ir.effects import Effect, effect_of
from tessera.ir.notes import Unfit, note
from tessera.ir.splitting import Axis, Dimensions, Splitter
from tessera.ir.tile.elementwise import ArangeOp, constant_value
from tessera.ir.tile.memory import GatherOp, LoadOp, ScatterOp, StoreOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.random import PhiloxOp
from tessera.ir.tile.reduce import ReduceOp
from tessera.ir.tile.structure import GridOp, KernelOp
from tessera.ir.tile.types import TileType
from tessera.ir.traits import has_trait
from tessera.ir.walking import ops_in
from tessera.lower.facts import is_size_of
from tessera.schedule.scheduled_pass import GridPass

LEAST_LENGTH = 128
"""Elements along a dimension from which on it is taken to have many more."""
BYTES = 16384
"""That a program moves at least."""
MOST_TIMES = 8
MOST_ELEMENTS = 8192
"""Of the largest tile of a program that is made longer."""
PROGRAMS_PER_MULTIPROCESSOR = 2
"""As many are kept where the grid's size is known."""


@dataclass(frozen=True)
class WidenProgramsPass(GridPass):
    """Makes the tiles of a program longer along a dimension in which all of its elements are treated alike.

    Args:
        target: the GPU.
        knobs: `batch` says how many programs run as one, which leaves the tiles as they are here.
    """

    name: ClassVar[str] = "widen-programs"

    def rewrite(self, kernel: KernelOp, grid: GridOp) -> None:
        """Rewrite a launch along the last dimension of the grid along which that is possible."""
        ops = ops_in(grid)
        if self.knobs.batch or any(isinstance(op, MmaOp) for op in ops):
            return
        if not any(isinstance(op, ReduceOp) for op in ops):
            return
        for axis in reversed(range(len(grid.block_sizes))):
            times = self._times(grid, axis)
            if times == 1:
                continue
            try:
                new = _longer(kernel, grid, axis, times)
            except Unfit:
                continue
            Rewriter.insert_op(new, InsertPoint.before(grid))
            Rewriter.erase_op(grid)
            note(new, "widen", [f"tiles are {times} times as long along dimension {axis} of the grid"])
            return

    def _times(self, grid: GridOp, axis: int) -> int:
        """Return how many times as long tiles become along a dimension of the grid: a power of two."""
        block, moved = grid.block_sizes[axis], sum(moved_bytes(grid, axis))
        if block < LEAST_LENGTH or not moved:
            return 1
        most = min(-(-BYTES // moved), MOST_TIMES, MOST_ELEMENTS // largest_tile(grid))
        programs = 1
        for extent, size in zip(grid.extents, grid.block_sizes, strict=True):
            known = constant_value(extent)
            programs = 0 if known is None else programs * -(-int(known) // size)
        if programs:
            most = min(most, programs // (PROGRAMS_PER_MULTIPROCESSOR * self.target.machine.units))
        return 1 << max(most, 1).bit_length() - 1


def _longer(kernel: KernelOp, grid: GridOp, axis: int, times: int) -> GridOp:
    """Return a launch with longer tiles along a dimension of the grid; it is not inserted.

    Raises:
        Unfit: an element's place in its program's tiles matters.
    """
    dimensions, start, block = Dimensions(grid), grid.body.block.args[axis], grid.block_sizes[axis]
    found = {
        dimensions.of(_tile(op), place)
        for op in ops_in(grid)
        if isinstance(op, LoadOp | StoreOp)
        for place, at in enumerate(op.kept)
        if op.offsets[at] is start
    }
    if any(dimensions.why_whole(dimension) is not None for dimension in found):
        raise Unfit("an op takes all of a tile")
    for op in grid.walk():
        _check(op, found, dimensions, start, block)
        if isinstance(op, StoreOp) and not _ends_with(kernel, op, start, grid.extents[axis]):
            raise Unfit("a tensor goes on where the grid ends, or is stored to by all programs")
    new = Splitter(dimensions, {dimension: (block * times,) for dimension in found}).grid_of_parts(grid)
    sizes = [block * times if place == axis else size for place, size in enumerate(grid.block_sizes)]
    new.blocks = ints(sizes)
    return new


def _tile(op: LoadOp | StoreOp) -> SSAValue:
    return op.result if isinstance(op, LoadOp) else op.value


def _check(op: Operation, found: set[Axis], dimensions: Dimensions, start: SSAValue, block: int) -> None:
    """Check that an op does the same with all elements along dimensions, and knows of their place by boxes only.

    Raises:
        Unfit: it does not.
    """
    if isinstance(op, LoadOp | StoreOp):
        along = [at for place, at in enumerate(op.kept) if _is_along(_tile(op), place, found, dimensions)]
        starts = [at for at, offset in enumerate(op.offsets) if offset is start]
        if along != starts or any(op.size_list[at] != block for at in along):
            raise Unfit("a box does not begin where the program does")
        return
    if any(operand is start for operand in op.operands):
        raise Unfit("the program's place is used otherwise")
    if isinstance(op, ReduceOp) and _is_along(op.source, op.axis.data, found, dimensions):
        raise Unfit("a dimension is reduced")
    if isinstance(op, ArangeOp | PhiloxOp | GatherOp | ScatterOp) or _does_more(op):
        raise Unfit("an element's place may matter")


def _is_along(tile: SSAValue, place: int, found: set[Axis], dimensions: Dimensions) -> bool:
    return isinstance(tile.type, TileType) and dimensions.of(tile, place) in found


def _does_more(op: Operation) -> bool:
    """Return whether an op does something else than to compute, to load and to store boxes."""
    return not op.regions and effect_of(op) > Effect.PURE and not has_trait(op, IsTerminator)


def _ends_with(kernel: KernelOp, op: StoreOp, start: SSAValue, extent: SSAValue) -> bool:
    """Return whether a store is each program's own, to a tensor that ends where the grid does."""
    axes = [axis for axis, offset in enumerate(op.offsets) if offset is start]
    return bool(axes) and all(is_size_of(kernel, extent, op.tensor, axis) for axis in axes)
