"""Moves boxes of short, odd dimensions without what pads them.

A tile has powers of two of elements. A box of 5 x 32 x 3 x 3 elements lies in a tile of 8 x 32 x 4 x 4, whose threads
do nothing for two elements of three. A program that only moves such boxes can number the elements that there are
(`packed_boxes.py`). The places that belong to a number are computed once for several boxes, which are neighbours along
one dimension, the first that has so many.

Before::

    grid(%A, %B, %C, %D) by [1, 8, 32, 4] { %x = load X[...] [1, 8, 32, 4]; store %x, Y[...] [1, 8, 32, 4] }

After, where enough of the tiles is padding::

    grid(<programs of boxes>) by [1, 1, 1, 1] when <tiles are padded> {
        %n = ...                                  // elements of a box of this program
        for %s = 0 to %n step 512
            shared_scatter (gather_at X[distance of %s + 0..511]), %buffer[its number in Y]
        barrier
        for %s = 0 to %n step 512
            scatter_at (shared_gather %buffer[%s + 0..511]), Y[distance of %s + 0..511]
    }
    grid(%A, %B, %C, %D) by [1, 8, 32, 4] when <they are not> { ... }

Each launch decides from its sizes, also whether boxes are half as long along the widest dimension, so that they have
room.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod
from typing import ClassVar

from xdsl.ir import SSAValue
from xdsl.rewriter import InsertPoint

from tessera.data import dataclass
from tessera.ir import decisions
from tessera.ir.batching import names_size_of
from tessera.ir.inserter import Inserter, ceildiv
from tessera.ir.notes import note
from tessera.ir.tile.elementwise import CastOp
from tessera.ir.tile.memory import LoadOp, StoreOp
from tessera.ir.tile.structure import GridOp, KernelOp, StrideOp, memory_of
from tessera.ir.tile.types import element_of
from tessera.ir.types import dtype_of, index
from tessera.lower.facts import nearest
from tessera.schedule.gpu.packed_boxes import LONGEST, MOST_ELEMENTS, Boxes, write_program
from tessera.schedule.launch_guards import all_are, at_least, put_beside
from tessera.schedule.scheduled_pass import GridPass

BOXES_BYTES = 16
"""Of an element of all boxes of a program together, of which several programs are to have room at a time."""
PROGRAMS_PER_MULTIPROCESSOR = 3
"""At least: fewer leave some idle, which several boxes at a time do not make up for."""
LEAST_PADDED, LEAST_PADDED_VECTORS = (5, 4), (3, 2)
"""Room of tiles for each element at least, from which on numbering elements takes less than moving what pads them:
where both sides are moved element by element, and where one is moved by vectors."""
RESIDENT = 4
"""Programs of a multiprocessor at once, for which it has registers."""
VECTOR = 4
"""Elements of a vector at least."""
SHORT = 32
"""Dimensions of boxes that are as long or shorter may be shorter still."""
ROOM = 4096
"""Elements of the tile in which boxes lie at most."""


@dataclass(frozen=True)
class PackPermutesPass(GridPass):
    """Lets programs that permute short dimensions move the elements of their boxes alone.

    Args:
        target: the GPU.
        knobs: `batch` and `num_warps` belong to blocks as they are written.
    """

    name: ClassVar[str] = "pack-permutes"

    def rewrite(self, kernel: KernelOp, grid: GridOp) -> None:
        """Put a launch that moves packed boxes before one that moves tiles, for sizes that leave tiles padded."""
        if self.knobs.batch or self.knobs.num_warps:
            return
        moved = _moved(kernel, grid)
        if moved is None:
            return
        load, store = moved
        bytes_ = dtype_of(element_of(load.tensor.type)).bytes
        if bytes_ > 4 or not _may_be_padded(kernel, store, grid):
            return
        insert = Inserter(InsertPoint.before(grid), grid)
        orders = [nearest(kernel, op) for op in moved]
        boxes = _Planner(insert, grid, orders, BOXES_BYTES // bytes_).boxes()
        conditions = [(each, True) for each in self._conditions(insert, kernel, grid, moved, boxes)]
        guard = all_are(insert, conditions)
        if not isinstance(guard, SSAValue):
            return
        others = insert.binary("sub", insert.constant(1), guard)
        if grid.guard is not None:
            guard, others = (insert.binary("mul", grid.guard, each) for each in (guard, others))
        new = GridOp(boxes.programs, [1] * len(boxes.programs), guard)
        new.location = grid.location
        decisions.RESIDENT.write(new, RESIDENT)
        read, written = ([axis for axis in reversed(order) if boxes.most[axis] > 1] for order in orders)
        write_program(new, grid.extents, load, store, boxes, read, written)
        shape = "x".join(map(str, boxes.most))
        note(new, "permutes", [f"boxes of up to {shape} are moved without what pads them, {boxes.count} at a time"])
        put_beside(grid, new, others)

    def _conditions(
        self, insert: Inserter, kernel: KernelOp, grid: GridOp, moved: tuple[LoadOp, StoreOp], boxes: Boxes
    ) -> list[SSAValue | bool]:
        """Return what makes boxes worth it, and possible."""
        by_vectors = any(_by_vectors(kernel, op) for op in moved)
        programs = insert.constant(1)
        for count in boxes.programs:
            programs = insert.binary("mul", programs, count)
        least = max(PROGRAMS_PER_MULTIPROCESSOR * self.target.machine.units, 1)
        return [
            boxes.possible,
            _is_padded(insert, grid, LEAST_PADDED_VECTORS if by_vectors else LEAST_PADDED),
            at_least(insert, programs, least),
            *(_is_near(insert, op, boxes) for op in moved),
        ]


class _Planner:
    """Computes which boxes the programs of a launch move.

    Args:
        insert: where to add ops.
        grid: the launch, of tiles.
        orders: the dimensions where they are read, and where they are written, those first whose elements lie nearest.
        count: boxes that a program moves.
    """

    def __init__(self, insert: Inserter, grid: GridOp, orders: Sequence[Sequence[int]], count: int) -> None:
        self.insert, self.grid, self.count = insert, grid, count
        self.one, self.most = insert.constant(1), _most_of(grid.block_sizes)
        self.widest = max(range(len(self.most)), key=self.most.__getitem__)
        self.outer = _outer(grid.block_sizes, orders)

    def boxes(self) -> Boxes:
        """Return them."""
        sizes = [self.insert.constant(size) for size in self.most]
        whole, half = self._fit()
        less = self.insert.constant(self.most[self.widest] // 2)
        sizes[self.widest] = self.insert.binary("sub", sizes[self.widest], self.insert.binary("mul", less, half))
        along, found = self._along()
        programs = list[SSAValue]()
        for axis, extent in enumerate(self.grid.extents):
            boxes = self._boxes(extent, self.most[axis])
            if axis == self.widest and self.most[axis] > 1:
                boxes = self._either(half, self._boxes(extent, self.most[axis] // 2), boxes)
            if axis in along:
                boxes = self._either(along[axis], self._boxes(boxes, self.count), boxes)
            programs.append(boxes)
        fit = self.insert.binary("add", whole, half)
        return Boxes(self.most, sizes, self.count, along, programs, self.insert.binary("mul", fit, found))

    def _fit(self) -> tuple[SSAValue, SSAValue]:
        """Return whether boxes have room, and whether only those that are half as long along the widest dimension."""
        insert, elements = self.insert, list[SSAValue]()
        for parts in (1, 2):
            found = self.one
            for axis, (extent, most) in enumerate(zip(self.grid.extents, self.most, strict=True)):
                size = max(most // parts, 1) if axis == self.widest else most
                found = insert.binary("mul", found, insert.binary("minimum", extent, insert.constant(size)))
            elements.append(found)
        whole, half = (
            _as_index(insert, insert.binary("le", each, insert.constant(MOST_ELEMENTS))) for each in elements
        )
        return whole, insert.binary("sub", half, whole)

    def _along(self) -> tuple[dict[int, SSAValue], SSAValue]:
        """Return along which dimension boxes are neighbours, and whether they are along any."""
        insert, left = self.insert, self.one
        along = dict[int, SSAValue]()
        for axis in self.outer:
            least = insert.constant((self.count - self.count // 4) * self.most[axis])
            enough = insert.binary("floordiv", self.grid.extents[axis], least)
            along[axis] = insert.binary("minimum", enough, left)
            left = insert.binary("sub", left, along[axis])
        return along, insert.binary("sub", self.one, left)

    def _boxes(self, extent: SSAValue, size: int) -> SSAValue:
        return ceildiv(self.insert, extent, self.insert.constant(size), self.one)

    def _either(self, condition: SSAValue, value: SSAValue, other: SSAValue) -> SSAValue:
        """Return one of two numbers."""
        more = self.insert.binary("mul", condition, self.insert.binary("sub", value, other))
        return self.insert.binary("add", other, more)


def _most_of(blocks: Sequence[int]) -> list[int]:
    """Return how long boxes are at most: as blocks are, while they are not too long."""
    most = [min(size, LONGEST) for size in blocks]
    while prod(most) > ROOM:
        widest = max(range(len(most)), key=most.__getitem__)
        most[widest] = (most[widest] + 1) // 2
    return most


def _outer(blocks: Sequence[int], orders: Sequence[Sequence[int]]) -> list[int]:
    """Return two dimensions along which boxes may be neighbours.

    Those with blocks of 1 come first, then the one whose elements lie farthest apart where they are read and where they
    are written, then the one with the longest blocks.
    """
    apart = {axis: min(order.index(axis) for order in orders) for axis in range(len(blocks))}
    single = [axis for axis, size in enumerate(blocks) if size == 1]
    farthest, longest = max(apart, key=apart.__getitem__), max(apart, key=lambda axis: (blocks[axis], apart[axis]))
    return list(dict.fromkeys([*single, farthest, longest]))[:2]


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
    return (load, store) if nearest(kernel, load) != nearest(kernel, store) else None


def _may_be_padded(kernel: KernelOp, store: StoreOp, grid: GridOp) -> bool:
    """Return whether short dimensions of boxes may be shorter than their tiles."""
    divisors, blocks = kernel.info_of(store.tensor).dim_div, grid.block_sizes
    return any(1 < size <= SHORT and divisors[axis] % size > 0 for axis, size in enumerate(blocks))


def _is_near(insert: Inserter, op: LoadOp | StoreOp, boxes: Boxes) -> SSAValue:
    """Return whether the elements of a box lie less than 2^32 elements apart, along no stride that is 0 or negative."""
    span, found = insert.constant(0), insert.constant(1)
    for axis, size in enumerate(boxes.most):
        if size == 1:
            continue
        stride = insert.value(StrideOp(op.tensor, axis))
        span = insert.binary("add", span, insert.binary("mul", stride, insert.constant(size)))
        positive = insert.value(CastOp(insert.binary("lt", insert.constant(0), stride), index))
        found = insert.binary("mul", found, positive)
    near = insert.value(CastOp(insert.binary("lt", span, insert.constant(1 << 32)), index))
    return insert.binary("mul", found, near)


def _by_vectors(kernel: KernelOp, op: LoadOp | StoreOp) -> bool:
    """Return whether runs of neighbours are read or written several elements at a time."""
    info, axis = kernel.info_of(op.tensor), nearest(kernel, op)[0]
    apart = [divisor for other, divisor in enumerate(info.stride_div) if other != axis]
    return gcd(info.dim_div[axis], *apart) >= VECTOR


def _is_padded(insert: Inserter, grid: GridOp, least: tuple[int, int]) -> SSAValue:
    """Return whether so much of the tiles is padding."""
    one = insert.constant(1)
    tiles, elements = one, one
    for size, written in zip(grid.extents, grid.block_sizes, strict=True):
        block = insert.constant(written)
        tiles = insert.binary("mul", tiles, insert.binary("mul", ceildiv(insert, size, block, one), block))
        elements = insert.binary("mul", elements, size)
    room, of = (insert.constant(part) for part in least)
    least_room, room = insert.binary("mul", elements, room), insert.binary("mul", tiles, of)
    return _as_index(insert, insert.binary("le", least_room, room))


def _as_index(insert: Inserter, condition: SSAValue) -> SSAValue:
    return insert.value(CastOp(condition, index))
