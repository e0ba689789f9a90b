"""Moves boxes of short, odd dimensions without what pads them.

A tile has powers of two of elements. A box of 5 x 32 x 3 x 3 elements lies in a tile of 8 x 32 x 4 x 4, whose threads
do nothing for two elements of three. A program that only moves such boxes can number the elements that there are: in
the order in which they lie where they are read, and again in that in which they lie where they are written. In between
they lie in shared memory, by the second number. The places that belong to a number are computed once for several boxes,
which are neighbours along another dimension.

Before::

    grid(%A, %B, %C, %D) by [1, 8, 32, 4] { %x = load X[...] [1, 8, 32, 4]; store %x, Y[...] [1, 8, 32, 4] }

After, where half of the tiles or less are elements::

    grid(%A, %B, %C, %D) by [8, 8, 32, 4] when <tiles are padded> {
        %n = ...                                  // elements of a box of this program
        for %s = 0 to %n step 512
            shared_scatter (gather_at X[distance of %s + 0..511]), %buffer[its number in Y]
        barrier
        for %s = 0 to %n step 512
            scatter_at (shared_gather %buffer[%s + 0..511]), Y[distance of %s + 0..511]
    }
    grid(%A, %B, %C, %D) by [1, 8, 32, 4] when <they are not> { ... }

Each launch decides from its sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from xdsl.dialects import scf
from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.rewriter import InsertPoint

from tessera.data import dataclass
from tessera.ir.batching import names_size_of
from tessera.ir.inserter import Inserter, ceildiv
from tessera.ir.notes import note
from tessera.ir.tile.elementwise import ArangeOp, CastOp, ConstantOp, ElementwiseOp, SplatOp
from tessera.ir.tile.flat import GatherAtOp, ScatterAtOp
from tessera.ir.tile.memory import LoadOp, StoreOp
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp
from tessera.ir.tile.shared import AllocSharedOp, BarrierOp, SharedGatherOp, SharedScatterOp
from tessera.ir.tile.structure import GridOp, KernelOp, StrideOp, memory_of
from tessera.ir.tile.types import element_of
from tessera.ir.types import dtype_of, element_type, index
from tessera.lower.facts import nearest
from tessera.numerics import dtypes
from tessera.schedule.launch_guards import all_are, at_least, put_beside
from tessera.schedule.scheduled_pass import GridPass

MOST_ELEMENTS = 2047
"""Of a box: with the one behind them a power of two, as rows of shared memory are."""
BOXES_BYTES = 16
"""Of an element of all boxes of a program together, of which several programs are to have room at a time."""
PROGRAMS_PER_MULTIPROCESSOR = 2
"""At least: fewer leave some idle, which several boxes at a time do not make up for."""
STEP = 512
"""Elements of a box that a program moves at a time."""
LEAST_PADDED = 2
"""Room of tiles for each element at least, from which on numbering elements takes less than moving what pads them."""
LONGEST = 256
"""Of a dimension of a box: numbers of elements are divided by a product and a shift."""
SHIFT = 20
SHORT = 32
"""Dimensions of boxes that are as long or shorter may be shorter still; there are two at least."""

_U32 = element_type(dtypes.u32)


@dataclass(frozen=True)
class PackPermutesPass(GridPass):
    """Lets programs that permute short dimensions move the elements of their boxes alone.

    Args:
        target: the GPU.
        knobs: `batch` and `num_warps` belong to blocks as they are written.
    """

    name: ClassVar[str] = "pack-permutes"

    def rewrite(self, kernel: KernelOp, grid: GridOp) -> None:
        """Put a launch that moves packed boxes before one that moves tiles, for sizes that leave tiles half empty."""
        if self.knobs.batch or self.knobs.num_warps or grid.guard is not None:
            return
        moved = _moved(kernel, grid)
        if moved is None:
            return
        load, store = moved
        bytes_ = dtype_of(element_of(load.tensor.type)).bytes
        box = [axis for axis, size in enumerate(grid.block_sizes) if size > 1]
        along = next((axis for axis, size in enumerate(grid.block_sizes) if size == 1), None)
        if along is None or bytes_ > 4 or not _may_be_padded(kernel, store, grid, box):
            return
        boxes = BOXES_BYTES // bytes_
        insert = Inserter(InsertPoint.before(grid), grid)
        sizes = [boxes if axis == along else size for axis, size in enumerate(grid.block_sizes)]
        programs = max(PROGRAMS_PER_MULTIPROCESSOR * self.target.machine.units, 1)
        conditions = [_is_padded(insert, grid, box), at_least(insert, _programs(insert, grid, sizes), programs)]
        conditions += [_is_near(insert, grid, op, box) for op in moved]
        guard = all_are(insert, [(each, True) for each in conditions])
        if not isinstance(guard, SSAValue):
            return
        new = GridOp(list(grid.extents), sizes, guard)
        new.location = grid.location
        read, written = ([axis for axis in reversed(nearest(kernel, op)) if axis in box] for op in (load, store))
        _Writer(new, load, store, along, read, written).write()
        shape = "x".join(str(size) for size in grid.block_sizes)
        note(new, "permutes", [f"blocks of {shape} are moved without what pads them, {boxes} at a time"])
        put_beside(grid, new, insert.binary("sub", insert.constant(1), guard))


def _moved(kernel: KernelOp, grid: GridOp) -> tuple[LoadOp, StoreOp] | None:
    """Return what a launch loads and stores that does nothing but move whole boxes of a tensor to another one."""
    ops = list(grid.body.block.ops)
    if len(ops) != 2:
        return None
    load, store = ops
    if not isinstance(load, LoadOp) or not isinstance(store, StoreOp) or store.value is not load.result:
        return None
    places, blocks = list[SSAValue](grid.body.block.args), grid.block_sizes
    whole = all(
        list(op.offsets) == places
        and op.size_list == blocks
        and op.mask is None
        and not op.dropped
        and all(names_size_of(kernel, extent, op.tensor, axis) for axis, extent in enumerate(grid.extents))
        for op in (load, store)
    )
    if not whole or memory_of(load.tensor) is memory_of(store.tensor):
        return None
    return (load, store) if nearest(kernel, load)[:1] != nearest(kernel, store)[:1] else None


def _programs(insert: Inserter, grid: GridOp, sizes: Sequence[int]) -> SSAValue:
    """Return how many programs a launch has with blocks of other sizes."""
    one = count = insert.constant(1)
    for extent, size in zip(grid.extents, sizes, strict=True):
        count = insert.binary("mul", count, ceildiv(insert, extent, insert.constant(size), one))
    return count


def _may_be_padded(kernel: KernelOp, store: StoreOp, grid: GridOp, box: Sequence[int]) -> bool:
    """Return whether several short dimensions of boxes may be shorter than their tiles."""
    divisors, blocks = kernel.info_of(store.tensor).dim_div, grid.block_sizes
    short = [axis for axis in box if blocks[axis] <= SHORT and divisors[axis] % blocks[axis]]
    return len(short) > 1 and all(blocks[axis] <= LONGEST for axis in box)


def _is_near(insert: Inserter, grid: GridOp, op: LoadOp | StoreOp, box: Sequence[int]) -> SSAValue:
    """Return whether the elements of a box lie less than 2^32 elements apart, along no stride that is 0 or negative."""
    span, found = insert.constant(0), insert.constant(1)
    for axis in box:
        stride = insert.value(StrideOp(op.tensor, axis))
        span = insert.binary("add", span, insert.binary("mul", stride, insert.constant(grid.block_sizes[axis])))
        positive = insert.value(CastOp(insert.binary("lt", insert.constant(0), stride), index))
        found = insert.binary("mul", found, positive)
    near = insert.value(CastOp(insert.binary("lt", span, insert.constant(1 << 32)), index))
    return insert.binary("mul", found, near)


def _is_padded(insert: Inserter, grid: GridOp, box: Sequence[int]) -> SSAValue:
    """Return whether half of the tiles or more is padding, and boxes have room."""
    one = insert.constant(1)
    tiles, elements, largest = one, one, one
    for axis in box:
        size, block = grid.extents[axis], insert.constant(grid.block_sizes[axis])
        tiles = insert.binary("mul", tiles, insert.binary("mul", ceildiv(insert, size, block, one), block))
        elements = insert.binary("mul", elements, size)
        largest = insert.binary("mul", largest, insert.binary("minimum", size, block))
    padded = insert.binary("le", insert.binary("mul", elements, insert.constant(LEAST_PADDED)), tiles)
    fits = insert.binary("le", largest, insert.constant(MOST_ELEMENTS))
    return insert.binary("mul", *(insert.value(CastOp(each, index)) for each in (padded, fits)))


class _Writer:
    """Writes a program that moves packed boxes.

    Args:
        grid: the new launch.
        load: what is moved.
        store: where to.
        along: the dimension along which a program's boxes are neighbours.
        read: dimensions of a box, those last whose elements lie nearest where they are read.
        written: the same where they are written.
    """

    def __init__(
        self, grid: GridOp, load: LoadOp, store: StoreOp, along: int, read: Sequence[int], written: Sequence[int]
    ) -> None:
        self.grid, self.load, self.store, self.along = grid, load, store, along
        self.read, self.written = read, written
        self.boxes = grid.block_sizes[along]
        self.shape = [STEP, self.boxes]  # a thread has an element of all boxes
        self.insert = Inserter(InsertPoint.at_end(grid.body.block), load)

    def write(self) -> None:
        """Write both loops."""
        insert, places = self.insert, self.grid.body.block.args
        left = [insert.binary("sub", extent, at) for extent, at in zip(self.grid.extents, places, strict=True)]
        blocks = [insert.constant(size) for size in self.grid.block_sizes]
        there = [insert.binary("minimum", *pair) for pair in zip(left, blocks, strict=True)]
        self.count = insert.constant(1)
        for axis in self.read:
            self.count = insert.binary("mul", self.count, there[axis])
        self.there = [self._cast(size, _U32) for size in there]
        whole = self._scalar(1 << SHIFT)
        self.factors = {
            axis: insert.binary("add", insert.binary("floordiv", whole, self.there[axis]), self._scalar(1))
            for axis in self.read
        }
        element = element_of(self.load.tensor.type)
        self.buffer = insert.value(AllocSharedOp([self.boxes, MOST_ELEMENTS + 1], element))
        self._loop(self._read_step)
        insert.add(BarrierOp())
        self._loop(self._write_step)

    def _loop(self, step: Callable[[SSAValue], None]) -> None:
        """Write a loop over the numbers of a box's elements."""
        outer, body = self.insert, Block(arg_types=[index])
        bounds = outer.constant(0), self.count, outer.constant(STEP)
        outer.add(scf.ForOp(*bounds, [], Region(body)))
        self.insert = Inserter(InsertPoint.at_end(body), self.load)
        step(body.args[0])
        self.insert.add(scf.YieldOp())
        self.insert = outer

    def _read_step(self, first: SSAValue) -> None:
        number, places = self._numbered(first, self.read)
        at, step = self._splat(self._scalar(0)), self._scalar(1)
        for axis in reversed(self.written):
            at = self._apply("add", at, self._apply("mul", places[axis], self._splat(step)))
            step = self._apply("mul", step, self.there[axis])
        mask = self._inside(number)
        value = self.insert.value(GatherAtOp(self.load.tensor, self._distances(self.load, places), mask))
        self.insert.add(SharedScatterOp(value, self.buffer, [self._box(), self._kept(at, number)]))

    def _write_step(self, first: SSAValue) -> None:
        number, places = self._numbered(first, self.written)
        mask = self._inside(number)
        value = self.insert.value(SharedGatherOp(self.buffer, [self._box(), self._kept(number, number)]))
        self.insert.add(ScatterAtOp(value, self.store.tensor, self._distances(self.store, places), mask))

    def _numbered(self, first: SSAValue, order: Sequence[int]) -> tuple[SSAValue, dict[int, SSAValue]]:
        """Return numbers of elements in an order of the dimensions, and their places in the box in each of them."""
        steps = self.insert.value(ArangeOp(STEP, _U32))
        number = rest = self._apply("add", steps, self._splat(self._cast(first, _U32)))
        places = dict[int, SSAValue]()
        for axis in reversed(order[1:]):
            # Exact for numbers of less than 2^12, which are divided by less than 2^8.
            above = self._apply("mul", rest, self._splat(self.factors[axis]))
            above = self._apply("floordiv", above, self._splat(self._scalar(1 << SHIFT)))
            places[axis] = self._apply("sub", rest, self._apply("mul", above, self._splat(self.there[axis])))
            rest = above
        places[order[0]] = rest
        return number, places

    def _distances(self, op: LoadOp | StoreOp, places: dict[int, SSAValue]) -> SSAValue:
        """Return how far behind the first of a tensor's elements those of all boxes lie."""
        insert, strides = self.insert, [StrideOp(op.tensor, axis) for axis in range(len(op.offsets))]
        steps = [insert.value(stride) for stride in strides]
        start = insert.constant(0)
        for place, step in zip(self.grid.body.block.args, steps, strict=True):
            start = insert.binary("add", start, insert.binary("mul", place, step))
        within = self._splat(self._scalar(0))
        for axis, place in places.items():
            within = self._apply("add", within, self._apply("mul", place, self._splat(self._cast(steps[axis], _U32))))
        numbers = insert.value(ArangeOp(self.boxes, index))
        apart = self._apply("mul", numbers, insert.value(SplatOp(steps[self.along], [self.boxes])))
        apart = self._apply("add", apart, insert.value(SplatOp(start, [self.boxes])))
        return self._apply("add", self._along(apart), self._across(self._cast(within, index)))

    def _kept(self, at: SSAValue, number: SSAValue) -> SSAValue:
        """Return where elements are kept: those that do not exist, which are zeros, all behind the last one."""
        behind = self._splat(self._scalar(MOST_ELEMENTS))
        found = self.insert.value(ElementwiseOp("select", [self._exists(number), at, behind]))
        return self._across(self._apply("minimum", found, behind))  # which tells that no bounds need be tested

    def _exists(self, number: SSAValue) -> SSAValue:
        return self._apply("lt", number, self._splat(self._cast(self.count, _U32)))

    def _inside(self, number: SSAValue) -> SSAValue:
        """Return which elements of all boxes there are."""
        inside = self._across(self._exists(number))
        boxes = self.insert.value(SplatOp(self.there[self.along], self.shape))
        return self._apply("and", inside, self._apply("lt", self._box(), boxes))

    def _box(self) -> SSAValue:
        """Return the number of the box of each element."""
        return self._along(self.insert.value(ArangeOp(self.boxes, _U32)))

    def _along(self, boxes: SSAValue) -> SSAValue:
        """Repeat what there is one of for each box."""
        row = self.insert.value(ReshapeOp(boxes, [1, self.boxes]))
        return self.insert.value(BroadcastOp(row, self.shape))

    def _across(self, elements: SSAValue) -> SSAValue:
        """Repeat what is the same for all boxes."""
        column = self.insert.value(ReshapeOp(elements, [STEP, 1]))
        return self.insert.value(BroadcastOp(column, self.shape))

    def _scalar(self, value: int) -> SSAValue:
        return self.insert.value(ConstantOp(value, _U32))

    def _splat(self, value: SSAValue) -> SSAValue:
        return self.insert.value(SplatOp(value, [STEP]))

    def _cast(self, value: SSAValue, element: Attribute) -> SSAValue:
        return self.insert.value(CastOp(value, element))

    def _apply(self, fn: str, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.insert.value(ElementwiseOp(fn, [a, b]))
