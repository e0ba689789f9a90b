"""Which elements of an array are meant: a part of each dimension, or places that index arrays have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import count
from math import prod

from xdsl.ir import Operation, SSAValue

from tessera.data import dataclass
from tessera.ir.graph.points import CastOp, FullOp, IotaOp, MapOp, SizeOp
from tessera.ir.graph.takes import StoredOp, TakeOp
from tessera.ir.graph.types import ONE, ZERO, array_type, dims_of, ordered
from tessera.ir.graph.views import BroadcastOp, ReshapeOp, SliceOp, TransposeOp
from tessera.numerics import dtypes
from tessera.numerics.dtypes import DType
from tessera.target.dims import Dim


@dataclass(frozen=True, slots=True)
class Along:
    """A dimension of the source that is one of the result: `start + step * place`.

    Args:
        axis: the result's dimension.
        start: the first place in the source.
        step: how far places are apart.
    """

    axis: int
    start: Dim = ZERO
    step: int = 1


Part = Along | SSAValue | None


@dataclass(frozen=True, slots=True)
class Selection:
    """Elements of an array.

    Args:
        parts: for each dimension of the array what it is in the result: a dimension, places of the result's shape, or
            nothing, for one of one element.
        dims: the result's shape.
    """

    parts: tuple[Part, ...]
    dims: tuple[Dim, ...]

    def is_whole(self, axis: int, size: Dim) -> bool:
        """Return whether a dimension stays as it is."""
        part = self.parts[axis]
        return isinstance(part, Along) and part == Along(part.axis) and self.dims[part.axis] == size


def selection_of(op: SliceOp | TakeOp) -> Selection:
    """Return what an op selects of its source."""
    dims = dims_of(op.result)
    if isinstance(op, TakeOp):
        return Selection(tuple(Along(at) if isinstance(at, int) else at for at in op.places), dims)
    bounds = zip(count(), op.first, op.apart)
    return Selection(tuple(Along(axis, start, step) for axis, start, step in bounds), dims)


class Selector:
    """Writes what a selection gives of computed arrays: the same, computed of selections of what they are computed of.

    Args:
        before: the op before which ops are written.
        again: the ops that are computed for the selection, rather than read from memory.
    """

    def __init__(self, before: Operation, again: Container[Operation]) -> None:
        self._before = before
        self._again = again
        self._known: dict[tuple[SSAValue, Selection], SSAValue] = {}

    def add(self, op: Operation) -> SSAValue:
        """Add an op and return its result."""
        op.location = self._before.location
        block = self._before.parent_block()
        assert block is not None, "an op of a graph is in its block"
        block.insert_op_before(op, self._before)
        return op.results[0]

    def full(self, value: float, dtype: DType, dims: Sequence[Dim]) -> SSAValue:
        """Return a number in each element of a shape."""
        return self.wide(self.add(FullOp(value, dtype)), dims)

    def apply(self, fn: str, first: SSAValue, second: SSAValue | int) -> SSAValue:
        """Return a function of arrays of one shape, or of one and a number."""
        type_ = array_type(first)
        other = self.full(second, type_.dtype, type_.dims) if isinstance(second, int) else second
        return self.add(MapOp(fn, [first, other]))

    def wide(self, value: SSAValue, dims: Sequence[Dim]) -> SSAValue:
        """Return one number in each element of a shape."""
        return self.add(BroadcastOp(value, dims, [])) if dims else value

    def selected(self, value: SSAValue, selection: Selection) -> SSAValue:
        """Return elements of a value."""
        key = value, selection
        if key not in self._known:
            self._known[key] = self._selected(value, selection)
        return self._known[key]

    def _selected(self, value: SSAValue, selection: Selection) -> SSAValue:
        op = value.owner
        if not dims_of(value):
            return self.wide(value, selection.dims)
        match op:
            case MapOp() | CastOp() if op in self._again:
                return self.add(of_others(op, [self.selected(operand, selection) for operand in op.operands]))
            case TakeOp() if op in self._again:
                return self._of_take(op, selection)
            case IotaOp():
                return self._places(selection, op.axis.data, array_type(value).dtype)
            case TransposeOp():
                parts = dict(zip(op.permutation, selection.parts, strict=True))
                return self.selected(op.source, replace(selection, parts=tuple(parts[at] for at in sorted(parts))))
            case BroadcastOp():
                return self._of_broadcast(op, selection)
            case ReshapeOp() if op.places is not None:
                return self._of_reshape(op, op.places, selection)
            case _:
                return self._read(value, selection)

    def _places(self, selection: Selection, axis: int, dtype: DType) -> SSAValue:
        """Return the places along a dimension."""
        part = selection.parts[axis]
        if part is None:
            return self.full(0, dtype, selection.dims)
        if not isinstance(part, Along):
            return part if array_type(part).dtype == dtype else self.add(CastOp(part, dtype))
        found = self.add(IotaOp(selection.dims, part.axis, dtype))
        if part.step != 1:
            found = self.apply("mul", found, part.step)
        return found if part.start == ZERO else self.apply("add", found, self.size(part.start, dtype, selection.dims))

    def size(self, size: Dim, dtype: DType, dims: Sequence[Dim]) -> SSAValue:
        """Return a size in each element of a shape."""
        return self.wide(self.add(FullOp(size.scale, dtype) if size.is_static else SizeOp(size, dtype)), dims)

    def _of_broadcast(self, op: BroadcastOp, selection: Selection) -> SSAValue:
        source, dims = dims_of(op.source), dims_of(op.result)
        pairs = zip(source, op.places, strict=True)
        parts = [None if dim == ONE != dims[at] else selection.parts[at] for dim, at in pairs]
        return self.selected(op.source, replace(selection, parts=tuple(parts)))

    def _of_reshape(self, op: ReshapeOp, places: Sequence[int | None], selection: Selection) -> SSAValue:
        parts: dict[int, Part] = {of: selection.parts[at] for at, of in enumerate(places) if of is not None}
        whole = tuple(parts.get(axis) for axis in range(len(dims_of(op.source))))
        return self.selected(op.source, replace(selection, parts=whole))

    def _of_take(self, op: TakeOp, selection: Selection) -> SSAValue:
        parts = [selection.parts[at] if isinstance(at, int) else self.selected(at, selection) for at in op.places]
        source = op.source.owner.source if isinstance(op.source.owner, StoredOp) else op.source
        return self._read(source, replace(selection, parts=tuple(parts)))

    def _read(self, value: SSAValue, selection: Selection) -> SSAValue:
        """Return elements of a value as a view of it, or taken from memory."""
        kept = [axis for axis, part in enumerate(selection.parts) if part is not None]
        if len(kept) < len(selection.parts):
            value = self.add(ReshapeOp(value, [dims_of(value)[axis] for axis in kept]))
            selection = replace(selection, parts=tuple(selection.parts[axis] for axis in kept))
        axes = [part.axis for part in selection.parts if isinstance(part, Along)]
        if len(axes) == len(selection.parts) == len({*axes}):
            return self._view(value, selection, axes)
        whole = [selection.is_whole(axis, dim) for axis, dim in enumerate(dims_of(value))]
        places = [
            part.axis if isinstance(part, Along) and stays else self._places(selection, axis, dtypes.i64)
            for axis, (part, stays) in enumerate(zip(selection.parts, whole, strict=True))
        ]
        return self.add(take_of(self.stored(value), places, selection.dims))

    def stored(self, value: SSAValue) -> SSAValue:
        """Return a value in memory."""
        return self.add(StoredOp(value)) if isinstance(value.owner, Operation) else value

    def _view(self, value: SSAValue, selection: Selection, axes: Sequence[int]) -> SSAValue:
        """Return a part of a value, with its dimensions where the result has them."""
        parts = [part for part in selection.parts if isinstance(part, Along)]
        if not all(selection.is_whole(axis, dim) for axis, dim in enumerate(dims_of(value))):
            sizes = [selection.dims[axis] for axis in axes]
            value = self.add(SliceOp(value, [part.start for part in parts], [part.step for part in parts], sizes))
        order = sorted(range(len(axes)), key=axes.__getitem__)
        if order != list(range(len(axes))):
            value = self.add(TransposeOp(value, order))
        if len(axes) == len(selection.dims):
            return value
        return self.add(BroadcastOp(value, selection.dims, sorted(axes)))


def of_others(op: MapOp | CastOp, operands: Sequence[SSAValue]) -> MapOp | CastOp:
    """Return an op that computes of other values what one computes of its own."""
    if isinstance(op, MapOp):
        return MapOp(op.fn.data, operands)
    return CastOp(operands[0], array_type(op.result).dtype, op.loose is not None)


def take_of(value: SSAValue, places: Sequence[int | SSAValue], dims: Sequence[Dim]) -> TakeOp:
    """Return the op that takes elements of a value, along each dimension at the result's places or at an index's."""
    indices = [at for at in places if isinstance(at, SSAValue)]
    numbers = iter(range(len(dims), len(dims) + len(indices)))
    return TakeOp(value, indices, [at if isinstance(at, int) else next(numbers) for at in places], dims)


def share_of(selection: Selection, dims: Sequence[Dim]) -> Fraction | None:
    """Return how many times its source's elements a selection has, None where a call's sizes say; of many, one is 0."""
    result, source = Counter(map(ordered, selection.dims)), Counter(map(ordered, dims))
    more, fewer = list((result - source).elements()), list((source - result).elements())
    if all(dim == ONE for dim in more) and not all(dim.is_static for dim in fewer):
        return Fraction(0)
    if not all(dim.is_static for dim in (*more, *fewer)) or ZERO in fewer:
        return None
    return Fraction(prod(dim.scale for dim in more), prod(dim.scale for dim in fewer))
