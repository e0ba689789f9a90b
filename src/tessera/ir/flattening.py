"""Elementwise launches over tensors without gaps as launches over one row of elements.

A program of such a launch stores boxes of tensors whose dimensions are those of its grid, and what it stores of an
element depends on the same element of other such tensors, and on elements of smaller ones that its place names: a bias
of each column, a factor of each row. Where the large tensors have no gaps, a program may take neighbours in memory
instead, across rows, and find the place of each by division.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from xdsl.ir import Block, Operation, SSAValue
from xdsl.rewriter import InsertPoint

from tessera.ir.batching import names_size_of
from tessera.ir.inserter import Inserter
from tessera.ir.notes import Unfit
from tessera.ir.tile.elementwise import ArangeOp, BitcastOp, CastOp, ConstantOp, ElementwiseOp, SplatOp, constant_value
from tessera.ir.tile.flat import LoadFlatOp, StoreFlatOp
from tessera.ir.tile.memory import GatherOp, LoadOp, StoreOp
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp
from tessera.ir.tile.structure import DimOp, GridOp, KernelOp, memory_of
from tessera.ir.tile.types import TileType, element_of, shape_of
from tessera.ir.tile.writes import stored_memories
from tessera.ir.types import element_type, index
from tessera.numerics import dtypes

Axes = tuple[int | None, ...]
"""For each axis of a tile the dimension of the grid along which it lies; None where all elements along it are alike."""

_U32, _I32 = element_type(dtypes.u32), element_type(dtypes.i32)


class Flat:
    """A launch whose programs may take neighbours in memory.

    Args:
        kernel: the kernel.
        grid: the launch.

    `whole` are the accesses to tensors of the grid's own dimensions.

    Raises:
        Unfit: they may not.
    """

    def __init__(self, kernel: KernelOp, grid: GridOp) -> None:
        self.kernel, self.grid = kernel, grid
        self._axes: dict[SSAValue, Axes] = {}
        self._stored = stored_memories(grid)
        self.whole: list[LoadOp | StoreOp] = []
        for op in grid.body.block.ops:
            check = _CHECKS.get(type(op))
            if check is None:
                raise Unfit(f"{op.name} is not elementwise")
            check(self, op)
        if not any(isinstance(op, StoreOp) for op in self.whole):
            raise Unfit("it stores nothing")

    def launch(self, total: SSAValue, sizes: Sequence[SSAValue], size: int, step: int, guard: SSAValue) -> GridOp:
        """Return the launch over one row of elements, inserted nowhere.

        Args:
            total: of all elements, less than 2^31.
            sizes: of the grid's dimensions, the last of which is `step` or more.
            size: elements of a program.
            step: neighbours of which one place is found by division, a number that divides `size`.
            guard: when the launch has programs.
        """
        new = GridOp([total], [size], guard)
        new.location = self.grid.location
        new.attributes.update(self.grid.attributes)
        writer = _Writer(self, new.body.block, sizes, size, step)
        for op in self.grid.body.block.ops:
            writer.write(op)
        return new

    def is_whole(self, op: LoadOp | StoreOp) -> bool:
        """Return whether an access is of a box of a tensor with the grid's dimensions, where a program's tile is."""
        grid = self.grid
        return list(op.offsets) == list(grid.body.block.args) and all(
            size == block and names_size_of(self.kernel, extent, op.tensor, axis)
            for axis, (size, block, extent) in enumerate(zip(op.size_list, grid.block_sizes, grid.extents, strict=True))
        )

    def place(self, op: LoadOp | StoreOp, axis: int) -> int | None:
        """Return along which dimension of the grid a box lies in a dimension of its tensor, None for its first element.

        Raises:
            Unfit: it lies elsewhere.
        """
        offset, size = op.offsets[axis], op.size_list[axis]
        places = list[SSAValue](self.grid.body.block.args)
        if offset in places and size == self.grid.block_sizes[places.index(offset)]:
            return places.index(offset)
        if constant_value(offset) == 0 and size == 1:
            return None
        raise Unfit("a box lies elsewhere than the tile of its program")

    # What each op may be

    def check_value(self, op: Operation) -> None:
        """Check an elementwise op: its operands lie along the same dimensions."""
        if any(arg in self.grid.body.block.args for arg in op.operands):
            raise Unfit("the number of a program says more than where its boxes start")
        tiles = [self._axes[arg] for arg in op.operands if isinstance(arg.type, TileType)]
        for result in op.results:
            if isinstance(result.type, TileType):
                self._axes[result] = tuple(map(_joined, zip(*tiles, strict=True)))

    def check_splat(self, op: SplatOp) -> None:
        """Check a scalar that is repeated."""
        self.check_value(op)
        self._axes[op.result] = (None,) * len(shape_of(op.result.type))

    def check_broadcast(self, op: BroadcastOp) -> None:
        """Check a repetition: elements along what is repeated are alike."""
        before, after = shape_of(op.source.type), shape_of(op.result.type)
        if len(before) != len(after):
            raise Unfit("a tile is repeated along new dimensions")
        pairs = zip(self._axes[op.source], before, after, strict=True)
        self._axes[op.result] = tuple(axis if old == new else None for axis, old, new in pairs)

    def check_reshape(self, op: ReshapeOp) -> None:
        """Check that a shape only gains or loses dimensions of one element."""
        before, after = shape_of(op.source.type), shape_of(op.result.type)
        kept = [axis for axis, size in zip(self._axes[op.source], before, strict=True) if size != 1]
        if [size for size in before if size != 1] != [size for size in after if size != 1]:
            raise Unfit("a tile changes its shape")
        self._axes[op.result] = tuple(kept.pop(0) if size != 1 else None for size in after)

    def check_load(self, op: LoadOp) -> None:
        """Check that a box lies where the program's tile does, and that no other element's store changes it."""
        whole = self.is_whole(op)
        if op.mask is not None:
            raise Unfit("what is loaded is masked")
        places = [self.place(op, axis) for axis in range(len(op.size_list))]
        others = [store for store in self.grid.body.block.ops if isinstance(store, StoreOp)]
        if memory_of(op.tensor) in self._stored and not (
            whole and all(s.tensor is op.tensor for s in others if memory_of(s.tensor) is memory_of(op.tensor))
        ):
            raise Unfit("programs load what others may store")
        if whole:
            self.whole.append(op)
        if isinstance(op.result.type, TileType):
            self._axes[op.result] = tuple(places[axis] for axis in op.kept)

    def check_store(self, op: StoreOp) -> None:
        """Check that each element is stored where it was loaded."""
        if op.mask is not None or not self.is_whole(op) or not isinstance(op.value.type, TileType):
            raise Unfit("what is stored is no whole box")
        wanted = [self.place(op, axis) for axis in op.kept]
        if any(axis not in (None, want) for axis, want in zip(self._axes[op.value], wanted, strict=True)):
            raise Unfit("elements are stored elsewhere than they are loaded")
        self.whole.append(op)

    def check_nothing(self, _op: Operation) -> None:
        """Check a constant or a size: it is the same for all programs."""


def _joined(axes: tuple[int | None, ...]) -> int | None:
    """Return along which dimension the axes of operands lie.

    Raises:
        Unfit: along several.
    """
    found = {axis for axis in axes if axis is not None}
    if len(found) > 1:
        raise Unfit("elements of different places are combined")
    return found.pop() if found else None


_CHECKS: dict[type[Operation], Callable[[Flat, Any], None]] = {
    ConstantOp: Flat.check_nothing,
    DimOp: Flat.check_nothing,
    ElementwiseOp: Flat.check_value,
    CastOp: Flat.check_value,
    BitcastOp: Flat.check_value,
    SplatOp: Flat.check_splat,
    BroadcastOp: Flat.check_broadcast,
    ReshapeOp: Flat.check_reshape,
    LoadOp: Flat.check_load,
    StoreOp: Flat.check_store,
}


class _Writer:
    """Writes what a program computes of a row of elements.

    Args:
        flat: the launch.
        block: of the new launch.
        sizes: of the dimensions.
        size: elements of a program.
        step: neighbours whose places follow from that of the first.
    """

    def __init__(self, flat: Flat, block: Block, sizes: Sequence[SSAValue], size: int, step: int) -> None:
        self.flat, self.size, self.step = flat, size, step
        self.first = block.args[0]
        self.insert = Inserter(InsertPoint.at_end(block), flat.grid)
        self.values: dict[SSAValue, SSAValue] = {}
        self.places = self._places(sizes)

    def write(self, op: Operation) -> None:
        """Write what an op computes of all elements of the row."""
        self.insert.like = op
        handler = _WRITES.get(type(op))
        results = self._alike(op) if handler is None else handler(self, op)
        self.values.update(zip(op.results, results, strict=True))

    def _alike(self, op: Operation) -> Sequence[SSAValue]:
        """Compute of each element what an op computes of a tile, or of what there is one of for a program."""
        operands = [self.values.get(operand, operand) for operand in op.operands]
        if any(isinstance(operand.type, TileType) for operand in operands):
            operands = [self._repeated(operand) for operand in operands]
            types = [TileType.of([self.size], element_of(result.type)) for result in op.results]
        else:
            types = [result.type for result in op.results]
        new = type(op).create(operands=operands, result_types=types, properties=op.properties, attributes=op.attributes)
        return self.insert.add(new).results

    def _repeated(self, value: SSAValue) -> SSAValue:
        return value if isinstance(value.type, TileType) else self._splat(value, self.size)

    def splat(self, op: SplatOp) -> Sequence[SSAValue]:
        """Repeat what there is one of for a program."""
        return [self._repeated(self.values.get(op.value, op.value))]

    def shaped(self, op: BroadcastOp | ReshapeOp) -> Sequence[SSAValue]:
        """Return what there is of each element already."""
        return [self.values[op.source]]

    def load(self, op: LoadOp) -> Sequence[SSAValue]:
        """Load the row, or for each element the one that belongs to its place."""
        if self.flat.is_whole(op):
            return [self.insert.value(LoadFlatOp(op.tensor, self.first, self.size))]
        fill = None if op.fill is None else self.values.get(op.fill, op.fill)
        places = [self.flat.place(op, axis) for axis in range(len(op.size_list))]
        zero = self.insert.constant(0)
        if not op.kept and places == [None] * len(places):  # one for all elements
            return [self.insert.value(LoadOp(op.tensor, [zero] * len(places), op.size_list, op.dropped, None, fill))]
        indices = [self._splat(zero, self.size) if place is None else self.places[place] for place in places]
        return [self.insert.value(GatherOp(op.tensor, indices, None, fill))]

    def store(self, op: StoreOp) -> Sequence[SSAValue]:
        """Store the row."""
        self.insert.add(StoreFlatOp(self.values[op.value], op.tensor, self.first))
        return []

    # Places of elements

    def _splat(self, value: SSAValue, *shape: int) -> SSAValue:
        return self.insert.value(SplatOp(value, shape))

    def _cast(self, value: SSAValue, element: Any) -> SSAValue:
        return self.insert.value(CastOp(value, element))

    def _places(self, sizes: Sequence[SSAValue]) -> list[SSAValue]:
        """Return where each element of the row lies in each dimension.

        Only the first of `step` neighbours is divided: the others lie in its row or in the next one.
        """
        apply, count, step = self.insert.binary, self.size // self.step, self.step
        sizes = [self._cast(size, _U32) for size in sizes]
        steps = self.insert.value(ConstantOp(step, _U32))
        numbers = self.insert.value(ArangeOp(count, _U32))
        rest = apply("mul", numbers, self._splat(steps, count))
        rest = apply("add", rest, self._splat(self._cast(self.first, _U32), count))
        firsts = list[SSAValue]()
        for size in reversed(sizes[1:]):
            whole = self._splat(size, count)
            above = apply("floordiv", rest, whole)
            firsts.insert(0, apply("sub", rest, apply("mul", above, whole)))
            rest = above
        firsts.insert(0, rest)
        along = self.insert.value(ReshapeOp(self.insert.value(ArangeOp(step, _U32)), [1, step]))
        more, found = self.insert.value(BroadcastOp(along, [count, step])), list[SSAValue]()
        for first, size in zip(reversed(firsts), reversed(sizes), strict=True):
            column = self.insert.value(ReshapeOp(first, [count, 1]))
            at = apply("add", self.insert.value(BroadcastOp(column, [count, step])), more)
            whole = self._splat(size, count, step)
            behind = apply("ge", at, whole)
            if len(found) < len(sizes) - 1:
                more = self._cast(behind, _U32)
                at = self.insert.value(ElementwiseOp("select", [behind, apply("sub", at, whole), at]))
            flat = self.insert.value(ReshapeOp(at, [self.size]))
            found.insert(0, self._cast(self._cast(flat, _I32), index))
        return found


_WRITES: dict[type[Operation], Callable[[_Writer, Any], Sequence[SSAValue]]] = {
    SplatOp: _Writer.splat,
    BroadcastOp: _Writer.shaped,
    ReshapeOp: _Writer.shaped,
    LoadOp: _Writer.load,
    StoreOp: _Writer.store,
}
