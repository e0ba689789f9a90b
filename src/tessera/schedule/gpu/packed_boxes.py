"""A program that moves boxes by numbers of their elements.

The elements of a box have numbers: in the order in which they lie where they are read, and again in that in which they
lie where they are written. In between they lie in shared memory by the second number, its banks turned by the number of
a line, so that the elements that a warp stores far from one another meet in few of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from xdsl.dialects import scf
from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.rewriter import InsertPoint

from tessera.data import dataclass
from tessera.ir.inserter import Inserter
from tessera.ir.tile.elementwise import ArangeOp, CastOp, ConstantOp, ElementwiseOp, SplatOp
from tessera.ir.tile.flat import GatherAtOp, ScatterAtOp
from tessera.ir.tile.memory import LoadOp, StoreOp
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp
from tessera.ir.tile.shared import AllocSharedOp, BarrierOp, SharedGatherOp, SharedScatterOp
from tessera.ir.tile.structure import GridOp, StrideOp
from tessera.ir.tile.types import element_of
from tessera.ir.types import dtype_of, element_type, index
from tessera.numerics import dtypes

MOST_ELEMENTS = 2047
"""Of a box: with the one behind them a power of two, as rows of shared memory are."""
STEP = 512
"""Elements of a box that a program moves at a time."""
LONGEST = 512
"""Of a dimension of a box: numbers of elements are divided by a product and a shift."""
SHIFT = 20
BANKS, BANK_BYTES = 32, 4
FARTHEST = 1 << 20
"""More than the boxes of a program reach."""

_U32 = element_type(dtypes.u32)


@dataclass(frozen=True)
class Boxes:
    """What a program moves.

    Attributes:
        most: how long a box is at most along each dimension of the launch.
        sizes: how long it is, where the launch has so many elements.
        count: of boxes, which are neighbours along one dimension.
        along: dimensions that it may be, each with 1 for the one that it is and 0 for others.
        programs: of the launch along each dimension.
        possible: 1 where boxes have room and there are so many, else 0.
    """

    most: list[int]
    sizes: list[SSAValue]
    count: int
    along: dict[int, SSAValue]
    programs: list[SSAValue]
    possible: SSAValue


def write_program(
    grid: GridOp,
    extents: Sequence[SSAValue],
    load: LoadOp,
    store: StoreOp,
    boxes: Boxes,
    read: Sequence[int],
    written: Sequence[int],
) -> None:
    """Write the body of a launch that moves boxes.

    Args:
        grid: the launch, whose programs have numbers.
        extents: elements along each dimension.
        load: what is moved.
        store: where to.
        boxes: what a program moves.
        read: dimensions of a box, those last whose elements lie nearest where they are read.
        written: the same where they are written.
    """
    _Writer(grid, load, store, boxes, read, written).write(extents)


class _Writer:
    """Writes one, with the arguments of `write_program`."""

    def __init__(
        self, grid: GridOp, load: LoadOp, store: StoreOp, boxes: Boxes, read: Sequence[int], written: Sequence[int]
    ) -> None:
        self.grid, self.load, self.store = grid, load, store
        self.read, self.written, self.boxes = read, written, boxes
        self.shape = [STEP, boxes.count]  # a thread has an element of all boxes
        self.insert = Inserter(InsertPoint.at_end(grid.body.block), load)

    def write(self, extents: Sequence[SSAValue]) -> None:
        """Write both loops."""
        insert, boxes = self.insert, self.boxes
        self.places = [self._place(axis) for axis in range(len(boxes.sizes))]
        left = [insert.binary("sub", extent, at) for extent, at in zip(extents, self.places, strict=True)]
        there = [insert.binary("minimum", *pair) for pair in zip(left, boxes.sizes, strict=True)]
        self.left = self._cast(insert.binary("minimum", self._of_along(left), insert.constant(FARTHEST)), _U32)
        self.size = self._of_along(boxes.sizes)
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
        self.per_bank = max(BANK_BYTES // dtype_of(element).bytes, 1)
        self.buffer = insert.value(AllocSharedOp([boxes.count, MOST_ELEMENTS + 1], element))
        self._loop(self._read_step)
        insert.add(BarrierOp())
        self._loop(self._write_step)

    def _place(self, axis: int) -> SSAValue:
        """Return where a program's first box begins along a dimension."""
        insert, boxes = self.insert, self.boxes
        place = insert.binary("mul", self.grid.body.block.args[axis], boxes.sizes[axis])
        if axis not in boxes.along:
            return place
        more = insert.binary("mul", boxes.along[axis], insert.constant(boxes.count - 1))
        return insert.binary("mul", place, insert.binary("add", more, insert.constant(1)))

    def _of_along(self, values: Sequence[SSAValue]) -> SSAValue:
        """Return what belongs to the dimension along which boxes are neighbours."""
        found = self.insert.constant(0)
        for axis, along in self.boxes.along.items():
            found = self.insert.binary("add", found, self.insert.binary("mul", along, values[axis]))
        return found

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
        mask = self._inside(number, places)
        value = self.insert.value(GatherAtOp(self.load.tensor, self._distances(self.load, places), mask))
        self.insert.add(SharedScatterOp(value, self.buffer, [self._box(), self._kept(at, number)]))

    def _write_step(self, first: SSAValue) -> None:
        number, places = self._numbered(first, self.written)
        mask = self._inside(number, places)
        value = self.insert.value(SharedGatherOp(self.buffer, [self._box(), self._kept(number, number)]))
        self.insert.add(ScatterAtOp(value, self.store.tensor, self._distances(self.store, places), mask))

    def _numbered(self, first: SSAValue, order: Sequence[int]) -> tuple[SSAValue, dict[int, SSAValue]]:
        """Return numbers of elements in an order of the dimensions, and their places in the box in each of them."""
        steps = self.insert.value(ArangeOp(STEP, _U32))
        number = rest = self._apply("add", steps, self._splat(self._cast(first, _U32)))
        places = dict[int, SSAValue]()
        for axis in reversed(order[1:]):
            # Exact for numbers of less than 2^11, which are divided by up to 2^9: their product is less than 2^SHIFT.
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
        for place, step in zip(self.places, steps, strict=True):
            start = insert.binary("add", start, insert.binary("mul", place, step))
        within = self._splat(self._scalar(0))
        for axis, place in places.items():
            within = self._apply("add", within, self._apply("mul", place, self._splat(self._cast(steps[axis], _U32))))
        numbers, count = insert.value(ArangeOp(self.boxes.count, index)), [self.boxes.count]
        step = insert.binary("mul", self._of_along(steps), self.size)
        apart = self._apply("mul", numbers, insert.value(SplatOp(step, count)))
        apart = self._apply("add", apart, insert.value(SplatOp(start, count)))
        return self._apply("add", self._along(apart), self._across(self._cast(within, index)))

    def _kept(self, at: SSAValue, number: SSAValue) -> SSAValue:
        """Return where elements are kept: those that do not exist, which are zeros, all behind the last one."""
        behind = self._splat(self._scalar(MOST_ELEMENTS))
        found = self.insert.value(ElementwiseOp("select", [self._exists(number), at, behind]))
        line = self._apply("floordiv", found, self._splat(self._scalar(BANKS * self.per_bank)))
        bank = self._apply("and", line, self._splat(self._scalar(BANKS - 1)))
        found = self._apply("xor", found, self._apply("mul", bank, self._splat(self._scalar(self.per_bank))))
        return self._across(self._apply("minimum", found, behind))  # which tells that no bounds need be tested

    def _exists(self, number: SSAValue) -> SSAValue:
        return self._apply("lt", number, self._splat(self._cast(self.count, _U32)))

    def _inside(self, number: SSAValue, places: Mapping[int, SSAValue]) -> SSAValue:
        """Return which elements of all boxes there are."""
        place = self._splat(self._scalar(0))
        for axis, along in self.boxes.along.items():
            if axis in places:
                at = self._apply("mul", places[axis], self._splat(self._cast(along, _U32)))
                place = self._apply("add", place, at)
        size = self.insert.value(SplatOp(self._cast(self.size, _U32), self.shape))
        place = self._apply("add", self._apply("mul", self._box(), size), self._across(place))
        left = self.insert.value(SplatOp(self.left, self.shape))
        return self._apply("and", self._across(self._exists(number)), self._apply("lt", place, left))

    def _box(self) -> SSAValue:
        """Return the number of the box of each element."""
        return self._along(self.insert.value(ArangeOp(self.boxes.count, _U32)))

    def _along(self, boxes: SSAValue) -> SSAValue:
        """Repeat what there is one of for each box."""
        row = self.insert.value(ReshapeOp(boxes, [1, self.boxes.count]))
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
