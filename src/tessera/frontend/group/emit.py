"""Writes the kernel of a group: one grid, in which each program loads, computes and stores its part.

16-bit floats are computed with in f32 and rounded where they are stored or cast to, loose casts apart. Functions that
give them have rough forms, which keep the accuracy of 16 bits. Under `strict` all is rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import prod
from typing import cast

from xdsl.dialects import scf
from xdsl.ir import Attribute, Block, BlockArgument, Operation, SSAValue, Use

from tessera.data import dataclass
from tessera.frontend.group.accesses import Access, Shape, operand_place, taken_access
from tessera.ir.graph.points import CastOp, FullOp, IotaOp, MapOp, SizeOp
from tessera.ir.graph.sums import PartsOp, ReduceOp
from tessera.ir.graph.takes import TakeOp
from tessera.ir.graph.types import array_type
from tessera.ir.tile.elementwise import ArangeOp, ConstantOp, ElementwiseOp, SplatOp
from tessera.ir.tile.elementwise import CastOp as TileCastOp
from tessera.ir.tile.memory import GatherOp, LoadOp, StoreOp
from tessera.ir.tile.reduce import ReduceOp as TileReduceOp
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp, TransposeOp
from tessera.ir.tile.structure import DimOp, GridOp
from tessera.ir.tile.types import element_of, shape_of
from tessera.ir.types import dtype_of, element_type, index
from tessera.numerics import dtypes
from tessera.numerics.dtypes import DType, computed_in
from tessera.numerics.functions import COMBINE, ROUGH, exact, identity_of, rough
from tessera.schedule.fuse.outside import power_of_two
from tessera.schedule.fuse.places import NONE, Place, is_view, source_place

STEP = 2048
"""Elements of the rows that a program computes at a time which combines columns of many rows."""


_FACTORS = {"mul": (0, 1), "div": (0, 1), "neg": (0,), "abs": (0,), "select": (1, 2), "copysign": (0,), "sqrt": (0,)}
"""Functions that change the relative errors of some operands by little, and which these are."""
_MOST_FACTORS = 4


@dataclass(frozen=True, slots=True)
class Held:
    """A value in registers.

    Args:
        ssa: a tile, or a scalar where it has no axis.
        axes: the kernel's axes of its dimensions, in order.
    """

    ssa: SSAValue
    axes: tuple[int, ...]


class Emitter:
    """Writes a group's ops for one program.

    Args:
        ops: the group's ops; the last one names its results.
        shape: the kernel's form.
        arguments: its parameters: one for each access, then the sizes.
        sizes: elements of each axis that a program takes.
        profile: the numerics profile.
    """

    def __init__(
        self,
        ops: Block,
        shape: Shape,
        arguments: Sequence[SSAValue],
        sizes: Sequence[int],
        profile: str,
    ) -> None:
        self._ops = ops
        self._rounds = profile == "strict"
        self._shape = shape
        self._arguments = dict(zip((*shape.accesses, *shape.sizes), arguments, strict=True))
        self._sizes = sizes
        self._held: dict[tuple[SSAValue, Place], Held] = {}
        self._block = Block()

    def write(self, entry: Block) -> None:
        """Write the grid, with all that it needs, to the end of a kernel."""
        kept = [number for number, axis in enumerate(self._shape.axes) if axis.block]
        self._block = entry
        extents = [self._extent(number) for number in kept]
        self._extents = dict(zip(kept, extents, strict=True))
        self._zero = self._add(ConstantOp(0, index)).results[0]
        grid = GridOp(extents, [self._shape.axes[number].block for number in kept])
        self._offsets: dict[int, SSAValue] = dict(zip(kept, grid.body.block.args, strict=True))
        self._block = grid.body.block
        results = self._results()
        along = self._steps_along()
        if along is None:
            for access, value in results:
                self._store_one(access, value)
        else:
            self._store_in_steps(along, results)
        self._block = entry
        self._add(grid)

    def _add(self, op: Operation) -> Operation:
        self._block.add_op(op)
        return op

    def _extent(self, axis: int) -> SSAValue:
        """Return the size of an axis, from an argument that goes along it, or is it."""
        size = self._shape.axes[axis].size
        if size is not None:
            return self._cast(self._arguments[size], index)
        access = next(one for one in self._shape.accesses if axis in self._shape.whole_along(one))
        return self._add(DimOp(self._arguments[access], self._shape.along(access).index(axis))).results[0]

    def _results(self) -> list[tuple[Access, SSAValue]]:
        """Return what is stored, and where."""
        end = self._ops.last_op
        assert end is not None, "a group ends with its yield"
        return [(access, end.operands[access.number]) for access in self._shape.accesses if access.is_result]

    def _steps_along(self) -> int | None:
        """Return the axis along which a program takes several rows one after the other, None where it takes none so."""
        if all(axis.block for axis in self._shape.axes):
            return None
        parts = {access.part for access in self._shape.accesses} - {NONE}
        found = [number for number, axis in enumerate(self._shape.axes) if parts & {*axis.parts}]
        return found[0] if found and self._step(found[0]) < self._sizes[found[0]] else None

    def _step(self, along: int) -> int:
        """Return how many rows a program computes at a time."""
        row = prod(self._sizes[number] for number, axis in enumerate(self._shape.axes) if not axis.block)
        return min(max(STEP // power_of_two(row), 1), self._sizes[along])

    def _store_in_steps(self, along: int, results: Sequence[tuple[Access, SSAValue]]) -> None:
        """Store what a program computes of its rows, some of them at a time, and then what it combined of all.

        Args:
            along: the axis that it takes in steps.
            results: what is stored, and where.
        """
        outside, start, count = self._block, self._offsets[along], self._sizes[along]
        step = self._step(along)
        self._resize(along, step)
        body = self._block = Block(arg_types=[index])
        self._offsets[along] = self._add(ElementwiseOp("add", [start, body.args[0]])).results[0]
        combined = {
            (value, access.place): value.owner
            for access, value in results
            if access.part != NONE and isinstance(value.owner, PartsOp)
        }
        for access, value in results:
            if access.part == NONE:
                self._store_one(access, value)
        tiles = [self._counted_in(op, self._value(op.source, place), place) for (_, place), op in combined.items()]
        sums = list[SSAValue]()
        for op, tile in zip(combined.values(), tiles, strict=True):
            before = body.insert_arg(tile.ssa.type, len(body.args))
            sums.append(self._add(ElementwiseOp(COMBINE[op.fn.data], [before, tile.ssa])).results[0])
        self._add(scf.YieldOp(*sums))
        self._block = outside
        first = [self._neutral(op, tile) for op, tile in zip(combined.values(), tiles, strict=True)]
        low, high, by = (self._add(ConstantOp(each, index)).results[0] for each in (0, count, step))
        loop = self._add(scf.ForOp(low, high, by, first, body))
        self._offsets[along] = start
        self._resize(along, count)
        self._held.clear()
        for (key, op), tile, total in zip(combined.items(), tiles, loop.results, strict=True):
            self._held[key] = self._over(op, Held(total, tile.axes), along)
        for access, value in results:
            if access.part != NONE:
                self._store_one(access, value)

    def _resize(self, along: int, size: int) -> None:
        self._sizes = [size if number == along else each for number, each in enumerate(self._sizes)]

    def _neutral(self, op: PartsOp, like: Held) -> SSAValue:
        """Return a tile of what changes nothing when it is combined."""
        element = element_of(like.ssa.type)
        number = self._add(ConstantOp(identity_of(op.fn.data, dtype_of(element)), element)).results[0]
        return self._add(SplatOp(number, shape_of(like.ssa.type))).results[0]

    def _store_one(self, access: Access, value: SSAValue) -> None:
        axes, whole = self._shape.along(access), self._shape.whole_along(access)
        held = self._spread(self._value(value, access.place), self._tiled(whole))
        stored = self._cast(held.ssa, array_type(value).element)
        offsets, sizes, drop = self._box(axes, [axis for axis in axes if axis not in whole])
        order = [held.axes.index(axis) for axis in axes if axis in held.axes]
        if order != sorted(order):
            stored = self._add(TransposeOp(stored, order)).results[0]
        self._add(StoreOp(stored, self._arguments[access], offsets, sizes, drop))

    def _tiled(self, axes: Sequence[int]) -> tuple[int, ...]:
        """Return those of some axes along which a program has several elements."""
        return tuple(sorted(axis for axis in axes if self._shape.axes[axis].block != 1))

    def _box(self, axes: Sequence[int], parts: Sequence[int] = ()) -> tuple[Sequence[SSAValue], list[int], list[int]]:
        """Return offsets, sizes and dropped dimensions of a program's part of an array.

        Args:
            axes: the axis of each dimension.
            parts: those along which the array has one element for each program.
        """
        if not axes:
            return [self._zero], [1], [0]
        tiled = [axis for axis in self._tiled(axes) if axis not in parts]
        offsets = [self._program(axis) if axis in parts else self._offsets.get(axis, self._zero) for axis in axes]
        sizes = [self._sizes[axis] if axis in tiled else 1 for axis in axes]
        return offsets, sizes, [at for at, axis in enumerate(axes) if axis not in tiled]

    def _program(self, axis: int) -> SSAValue:
        """Return the number of the program along an axis."""
        block = self._add(ConstantOp(self._sizes[axis], index)).results[0]
        return self._add(ElementwiseOp("floordiv", [self._offsets[axis], block])).results[0]

    def _value(self, value: SSAValue, place: Place) -> Held:
        key = value, place
        if key not in self._held:
            self._held[key] = self._made(value, place)
        return self._held[key]

    def _made(self, value: SSAValue, place: Place) -> Held:
        op = value.owner
        if isinstance(value, BlockArgument):
            return self._loaded(Access(value.index, False, place), array_type(value).dtype)
        assert isinstance(op, Operation), "a value is an operand, or an op's"
        if is_view(op):
            return self._value(op.operands[0], source_place(op, place))
        at = operand_place(op, place)
        match op:
            case FullOp():
                return self._constant(op.number, array_type(value).dtype)
            case SizeOp():
                wanted = element_type(computed_in(array_type(value).dtype))
                return Held(self._cast(self._arguments[op.dim], wanted), ())
            case IotaOp():
                return self._counted(place[op.axis.data], array_type(value).dtype)
            case CastOp():
                held = self._value(op.source, at)
                return held if self._is_left_out(op) else self._converted(held, array_type(value).dtype)
            case ReduceOp():
                return self._reduced(op, self._value(op.source, at), at)
            case PartsOp():
                return self._combined(op, self._value(op.source, at), at)
            case TakeOp():
                return self._taken(op, at)
            case MapOp():
                return self._mapped(self._function_of(op), [self._value(arg, at) for arg in op.args])
            case _:
                raise AssertionError(f"{op.name} is in no group")

    def _loaded(self, access: Access, dtype: DType) -> Held:
        axes = self._shape.along(access)
        offsets, sizes, drop = self._box(axes)
        tile = self._add(LoadOp(self._arguments[access], offsets, sizes, drop)).results[0]
        tiled = [axis for axis in axes if axis in self._tiled(axes)]
        order = sorted(range(len(tiled)), key=tiled.__getitem__)
        if order != list(range(len(order))):
            tile = self._add(TransposeOp(tile, order)).results[0]
        return Held(self._cast(tile, element_type(computed_in(dtype))), tuple(sorted(tiled)))

    def _taken(self, op: TakeOp, place: Place) -> Held:
        """Return elements of an operand at places."""
        indices = [
            self._counted(place[at], dtypes.i64) if isinstance(at, int) else self._value(at, place) for at in op.places
        ]
        axes = tuple(sorted({axis for index in indices for axis in index.axes}))
        spread = [self._spread(index, axes).ssa for index in indices]
        tile = self._add(GatherOp(self._arguments[taken_access(op)], spread)).results[0]
        return Held(self._cast(tile, element_type(computed_in(array_type(op.result).dtype))), axes)

    def _constant(self, number: float, dtype: DType) -> Held:
        return Held(self._add(ConstantOp(number, element_type(computed_in(dtype)))).results[0], ())

    def _counted(self, part: int, dtype: DType) -> Held:
        """Return the places along an axis."""
        element = element_type(dtype)
        if part == NONE:
            return self._constant(0, dtype)
        (axis,) = (number for number, each in enumerate(self._shape.axes) if part in each.parts)
        start = self._cast(self._offsets.get(axis, self._zero), element)
        if not self._tiled([axis]):
            return Held(start, ())
        steps = Held(self._add(ArangeOp(self._sizes[axis], element)).results[0], (axis,))
        return self._mapped("add", [steps, Held(start, ())])

    def _converted(self, held: Held, dtype: DType) -> Held:
        rounded = self._cast(held.ssa, element_type(dtype))
        return Held(self._cast(rounded, element_type(computed_in(dtype))), held.axes)

    def _reduced(self, op: ReduceOp, held: Held, at: Place) -> Held:
        """Return a reduction: along the axes of its dimensions, of which a program has all elements."""
        parts = {at[axis] for axis in op.reduced}
        along = [number for number, axis in enumerate(self._shape.axes) if parts & {*axis.parts}]
        held = self._spread(held, tuple(sorted({*held.axes, *along})))
        for axis in reversed(along):
            tile = self._add(TileReduceOp(held.ssa, held.axes.index(axis), op.fn.data)).results[0]
            held = Held(tile, tuple(other for other in held.axes if other != axis))
        return held

    def _combined(self, op: PartsOp, held: Held, at: Place) -> Held:
        """Return a reduction of a program's elements along an axis."""
        return self._over(op, self._counted_in(op, held, at), self._axis_of(op, at))

    def _axis_of(self, op: PartsOp, at: Place) -> int:
        part = at[op.axis.data]
        (axis,) = (number for number, each in enumerate(self._shape.axes) if part in each.parts)
        return axis

    def _counted_in(self, op: PartsOp, held: Held, at: Place) -> Held:
        """Return elements that are combined along an axis, of which those outside the array do not count."""
        axis = self._axis_of(op, at)
        dtype = dtype_of(element_of(held.ssa.type))
        end = Held(self._cast(self._extents[axis], element_type(dtypes.i64)), ())
        inside = self._mapped("lt", [self._counted(at[op.axis.data], dtypes.i64), end])
        neutral = self._constant(identity_of(op.fn.data, dtype), dtype)
        return self._spread(self._mapped("select", [inside, held, neutral]), tuple(sorted({*held.axes, axis})))

    def _over(self, op: PartsOp, held: Held, axis: int) -> Held:
        tile = self._add(TileReduceOp(held.ssa, held.axes.index(axis), op.fn.data)).results[0]
        return Held(tile, tuple(other for other in held.axes if other != axis))

    def _is_left_out(self, op: CastOp) -> bool:
        """Return whether a cast changes nothing before its result is stored."""
        source, dtype = array_type(op.source).dtype, array_type(op.result).dtype
        return op.loose is not None and computed_in(dtype) == source and not self._rounds

    def _function_of(self, op: MapOp) -> str:
        """Return the function that computes a map's elements: a rough form where only 16-bit floats become of them."""
        fn = op.fn.data
        if self._rounds:
            return exact(fn)
        return rough(fn) if fn in ROUGH and self._is_of_16_bits(op) else fn

    def _is_of_16_bits(self, op: MapOp, depth: int = 0) -> bool:
        """Return whether nothing becomes of a map's result but 16-bit floats, whose relative errors are no larger."""
        return depth < _MOST_FACTORS and all(self._takes_16_bits(use, depth) for use in op.result.uses)

    def _takes_16_bits(self, use: Use, depth: int) -> bool:
        reader = use.operation
        if isinstance(reader, CastOp):
            return self._is_left_out(reader)
        is_factor = isinstance(reader, MapOp) and use.index in _FACTORS.get(reader.fn.data, ())
        return is_factor and self._is_of_16_bits(cast(MapOp, reader), depth + 1)

    def _mapped(self, fn: str, args: Sequence[Held]) -> Held:
        axes = tuple(sorted(reduce(set[int].union, (set(arg.axes) for arg in args), set[int]())))
        spread = [self._spread(arg, axes).ssa for arg in args]
        return Held(self._add(ElementwiseOp(fn, spread)).results[0], axes)

    def _spread(self, held: Held, axes: tuple[int, ...]) -> Held:
        """Return a value repeated along the axes that it lacks."""
        if held.axes == axes:
            return held
        wanted = [self._sizes[axis] for axis in axes]
        if not held.axes:
            return Held(self._add(SplatOp(held.ssa, wanted)).results[0], axes)
        own = dict(zip(held.axes, shape_of(held.ssa.type), strict=True))
        thin = self._add(ReshapeOp(held.ssa, [own.get(axis, 1) for axis in axes])).results[0]
        return Held(self._add(BroadcastOp(thin, wanted)).results[0], axes)

    def _cast(self, value: SSAValue, element: Attribute) -> SSAValue:
        return value if element_of(value.type) == element else self._add(TileCastOp(value, element)).results[0]
