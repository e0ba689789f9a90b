"""Subscripts: bounded slices of tensors, index tiles, stages of shared buffers; `parts` has those of tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from xdsl.ir import SSAValue

from tessera.data import dataclass
from tessera.errors import LanguageError, TesseraError, TypeMismatchError
from tessera.frontend.annotations import Dim
from tessera.frontend.builder import Builder
from tessera.frontend.convert import apply, may_be_far, operand, static_int, symbol, to_index
from tessera.frontend.parts import FULL, SliceValue, index_tile
from tessera.frontend.values import (
    AnyView,
    At,
    Axis,
    BarriersValue,
    Pick,
    Scalar,
    Shared,
    SharedPart,
    Span,
    TensorValue,
    Tile,
    View,
    show,
)
from tessera.ir.tile.shared import SharedViewOp
from tessera.ir.tile.types import SharedType, describe

_PYTHON: tuple[type[Any], ...] = (tuple, list, dict, str, range)


def subscript(b: Builder, base: Any, items: tuple[Any, ...]) -> Any:
    """Return `base[items]`.

    Raises:
        TypeMismatchError: `rank-mismatch`, `bad-index` or `not-indexable`.
        LanguageError: `slice-extent`, `negative-index`.
    """
    if len(items) == 1 and isinstance(items[0], tuple) and not isinstance(base, _PYTHON):
        items = normalise(b, cast(tuple[Any, ...], items[0]))  # `x[at]` with `at = (i, j)` is `x[i, j]`
    if isinstance(base, TensorValue):
        return make_view(b, base, items)
    if isinstance(base, AnyView):
        base = operand(b, base)
    if isinstance(base, Tile):
        return index_tile(b, base, _expand_ellipsis(items, len(base.shape), f"tile {describe(base.type)}"))
    if isinstance(base, Shared):
        return _of_shared(b, base, items)
    if isinstance(base, BarriersValue):
        return _barrier(b, base, items)
    if isinstance(base, _PYTHON):
        return _index_python(b, base, items)
    raise TypeMismatchError(
        f"{show(base)} cannot be indexed",
        code="not-indexable",
        help="what may be missing is None in calls without it: ask `if bias is not None` first"
        if base is None
        else "tensors, tiles, shared buffers and tuples can",
    )


def _index_python(b: Builder, base: Any, items: tuple[Any, ...]) -> Any:
    key: Any = items[0] if len(items) == 1 else items
    if isinstance(key, SliceValue):
        key = slice(key.lower, key.upper, key.step)
    elif isinstance(key, Scalar) and b.static(key) is not None:
        key = b.static(key)
    try:
        found = base[key]
    except TesseraError:
        raise
    except Exception:  # a class of the program may raise what it likes
        raise LanguageError(
            f"{show(base)} has no element {show(key)}",
            code="bad-index",
            help="tuples and dictionaries are indexed by compile-time values that exist",
        ) from None
    b.reads.item(base, key, found)
    return found


def _barrier(b: Builder, base: BarriersValue, items: tuple[Any, ...]) -> BarriersValue:
    number = items[0] if len(items) == 1 and not base.one else None
    if isinstance(number, Scalar) and b.static(number) is not None:
        number = b.static(number)
    if not isinstance(number, int | Scalar) or (isinstance(number, int) and not 0 <= number < base.count):
        raise TypeMismatchError(
            f"{show(base)} {'have' if base.count > 1 else 'has'} no element {', '.join(map(_show_item, items))}",
            code="bad-index",
            help="barriers[slot], with a slot from 0 to their number less one",
        )
    return replace(base, one=True)


def _show_item(item: Any) -> str:
    if isinstance(item, SliceValue):
        return "a slice with bounds"
    return show(item)


def _of_shared(b: Builder, buffer: Shared, items: tuple[Any, ...]) -> Shared | SharedPart:
    """Return what a subscript of a shared buffer names: all of it, a stage, or a part."""
    if all(item is ... or (isinstance(item, SliceValue) and item.is_full) for item in items):
        return buffer
    first, rest = items[0], items[1:]
    if isinstance(first, AnyView | Shared):
        first = operand(b, first)
    alone = all(item is ... or (isinstance(item, SliceValue) and item.is_full) for item in rest)
    rank = len(buffer.shape)
    is_stage = alone and rank > 1 and len(items) <= rank
    if not is_stage or first is ... or isinstance(first, SliceValue | Tile | None):
        return _part(b, buffer, (first, *rest))
    if isinstance(first, int) and not 0 <= first < buffer.shape[0]:
        raise TypeMismatchError(
            f"stage {first} of {describe(buffer.type)} does not exist",
            code="bad-index",
            help=f"stages are 0 to {buffer.shape[0] - 1}",
        )
    if cast(Any, buffer.type).permutation[0] != 0:
        return _part(b, buffer, (first, *rest))
    return Shared(b.emit(SharedViewOp(buffer.ssa, to_index(b, first, "the stage"))).result, buffer.policy)


def _part(b: Builder, buffer: Shared, items: tuple[Any, ...]) -> SharedPart:
    assert isinstance(buffer.type, SharedType)
    if buffer.type.swizzle.data != "none":
        raise TypeMismatchError(
            f"a part of {describe(buffer.type)}, which is swizzled",
            code="bad-index",
            help='allocate it with swizzle="none", the default',
        )
    return SharedPart(buffer, *_axes(b, _Indexed(buffer), items), b.moment())


@dataclass(frozen=True, slots=True)
class _Indexed:
    """What a subscript takes a part of: a tensor, or a shared buffer."""

    value: TensorValue | Shared

    @property
    def name(self) -> str:
        """What diagnostics call it."""
        value = self.value
        return value.param.name if isinstance(value, TensorValue) else describe(value.type)

    @property
    def dims(self) -> tuple[Any, ...]:
        """Its dimensions, as the kernel writes them."""
        value = self.value
        return value.param.dims if isinstance(value, TensorValue) else value.shape

    def __str__(self) -> str:
        """Return it with its dimensions."""
        value = self.value
        return f"tensor {value.param}" if isinstance(value, TensorValue) else describe(value.type)

    def size(self, b: Builder, axis: int) -> int | Scalar:
        """Return the size of a dimension."""
        value = self.value
        return b.axis_size(value, axis) if isinstance(value, TensorValue) else value.shape[axis]

    def static_size(self, b: Builder, axis: int) -> int:
        """Return the size of a dimension as a compile-time constant, fixing it if need be."""
        value = self.value
        return b.static_axis(value, axis) if isinstance(value, TensorValue) else value.shape[axis]


def _expand_ellipsis(items: tuple[Any, ...], rank: int, what: str) -> tuple[Any, ...]:
    """Return the items with `...` and missing trailing dimensions written out as `:`."""
    given = sum(item is not None and item is not ... for item in items)
    if given > rank:
        raise TypeMismatchError(
            f"{given} indices for {what}, which has {rank} dimension{'s' * (rank != 1)}",
            code="rank-mismatch",
            help="give at most one index per dimension",
        )
    if sum(item is ... for item in items) > 1:
        raise TypeMismatchError("more than one ... in an index", code="bad-index", help="use one")
    missing = (FULL,) * (rank - given)
    if any(item is ... for item in items):
        at = next(i for i, item in enumerate(items) if item is ...)
        return (*items[:at], *missing, *items[at + 1 :])
    return (*items, *missing)


def make_view(b: Builder, tensor: TensorValue, items: tuple[Any, ...]) -> View:
    """Return the view that `tensor[items]` names."""
    return View(tensor, *_axes(b, _Indexed(tensor), items), b.moment())


def _axes(b: Builder, base: _Indexed, items: tuple[Any, ...]) -> tuple[tuple[Axis, ...], tuple[int, ...]]:
    """Return what items take along each dimension, and the positions of dimensions made by `None`."""
    items = _expand_ellipsis(items, len(base.dims), str(base))
    axes: list[Axis] = []
    new_axes: list[int] = []
    position = 0
    for item in items:
        if item is None:
            new_axes.append(position)
            position += 1
            continue
        axis = _axis(b, base, len(axes), item)
        position += not isinstance(axis, At)
        axes.append(axis)
    if any(isinstance(axis, Pick) for axis in axes):
        _check_adjacent(axes)
        if new_axes:
            raise TypeMismatchError(
                "None and an index tile in one index",
                code="bad-index",
                help="add the dimension after loading: x[:, None]",
            )
    return tuple(axes), tuple(new_axes)


def _check_adjacent(axes: Sequence[Axis]) -> None:
    """NumPy moves the dimensions of separated index tiles to the front; that surprise is refused."""
    kinds = "".join("s" if isinstance(axis, Span) else "i" for axis in axes)
    if "i" in kinds.strip("s") and "s" in kinds.strip("s"):
        raise TypeMismatchError(
            "a slice between index tiles or integers",
            code="bad-index",
            help="put the slice first or last, or write it as an index tile, (m + ts.tile.arange(64))[:, None]",
        )


def _axis(b: Builder, base: _Indexed, axis: int, item: Any) -> Axis:
    if isinstance(item, SliceValue):
        return _span(b, base, axis, item)
    if isinstance(item, AnyView | Shared):
        item = operand(b, item)
    if isinstance(item, Tile):
        if not item.dtype.is_int:
            raise TypeMismatchError(
                f"an index tile must be integer, got {describe(item.type)}",
                code="bad-index",
                help="for a condition use `if` or ts.tile.where" if item.dtype.kind == "bool" else "cast it to ts.i32",
            )
        return Pick(item)
    if isinstance(item, int) and item < 0:
        raise _negative(base, axis, item)
    return At(to_index(b, item, f"index {axis} of {base.name}"))


def _negative(base: _Indexed, axis: int, value: int) -> LanguageError:
    dim = base.dims[axis]
    return LanguageError(
        f"{base.name}: the index {value} is negative",
        code="negative-index",
        help=f"count from the start: {dim}{value}; a run-time offset may be negative and then reads fill",
    )


def _span(b: Builder, base: _Indexed, axis: int, item: SliceValue) -> Span:
    step = 1 if item.step is None else static_int(b, item.step, "the step of a slice")
    if step == 0:
        raise LanguageError("a slice with the step 0", code="slice-step", help="A[0:64:2] takes every second element")
    whole = (None, 0) if step > 0 else (None,)
    if item.lower in whole and item.upper is None:
        return _whole(b, base, axis, step)
    for bound in (item.lower, item.upper):
        if isinstance(bound, int) and bound < 0:
            raise _negative(base, axis, bound)
    where = f"the bounds of {base.name}"
    first, last = _bounds(b, base, axis, item, step, where)
    lower = to_index(b, first, where)
    size = _extent(b, first, last, lower, where)
    if size is None:
        raise LanguageError(
            f"the extent of the slice of {base.name}, dimension {axis}, is not known at compile time",
            code="slice-extent",
            help="write the upper bound as the lower one plus a constant, m:m+64, and load a bound once: s = I[i]",
        )
    if -(-size // step) < 1:
        raise LanguageError(
            f"the slice along dimension {axis} of {base.name} has the extent {size}"
            f"{'' if step == 1 else f' and the step {step}'}",
            code="slice-extent",
            help=f"the upper bound must be {'above' if step > 0 else 'below'} the lower one",
        )
    start = to_index(b, first, where, far=True) if may_be_far(first) else lower
    return _stepped(base, axis, start, -(-size // step), step)


def _whole(b: Builder, base: _Indexed, axis: int, step: int) -> Span:
    """Return a whole dimension, or every `step`-th of its elements, from the last one on where that is negative."""
    size = base.static_size(b, axis)
    if size < 1:
        b.note_empty_tile(f"{base.name}[...] takes the whole dimension {base.dims[axis]}, which is empty")
        return Span(b.index(0), 1)
    if step == 1:
        return Span(b.index(0), size, whole=True)
    return _stepped(base, axis, b.index(0 if step > 0 else size - 1), -(-size // abs(step)), step)


def _stepped(base: _Indexed, axis: int, lower: SSAValue, size: int, step: int) -> Span:
    if size * abs(step) >= 2**62:
        raise LanguageError(
            f"the slice along dimension {axis} of {base.name} has {size} elements, {step} apart",
            code="slice-step",
            help="no dimension is as large as that",
        )
    return Span(lower, size, step=step if size > 1 else 1)


def _bounds(b: Builder, base: _Indexed, axis: int, item: SliceValue, step: int, where: str) -> tuple[Any, Any]:
    """Return the first place of a slice, and the one after its last in the direction of its step."""
    backwards = step < 0
    if item.lower is None:
        size = base.size(b, axis) if backwards else 1
        first = size - 1 if isinstance(size, int) else apply(b, "sub", size, 1)
    else:
        first = _bound(b, item.lower, where)
    if item.upper is None:
        last = -1 if backwards else base.size(b, axis)
    else:
        last = _bound(b, item.upper, where)
    return first, last


def _bound(b: Builder, value: Any, where: str) -> Any:
    """Return a bound as a number or a scalar: an element of a tensor is loaded, once."""
    return operand(b, value, where) if isinstance(value, AnyView) else value


def _extent(b: Builder, first: Any, last: Any, lower: SSAValue, where: str) -> int | None:
    """Return how far apart the bounds are where it is known, in the arithmetic of their type, which wraps."""
    if isinstance(first, Scalar) and isinstance(last, Scalar) and first.type == last.type:
        to_index(b, last, where)  # refuses what is not an integer
        return b.static_difference(last.ssa, first.ssa) if first.dtype.is_int else None
    return b.static_difference(to_index(b, last, where), lower)


def normalise(b: Builder, items: Sequence[Any]) -> tuple[Any, ...]:
    """Return index items with dimension symbols resolved."""

    def one(item: Any) -> Any:
        if isinstance(item, Dim):
            return symbol(b, item)
        if isinstance(item, SliceValue):
            return replace(item, lower=one(item.lower), upper=one(item.upper), step=one(item.step))
        return item

    return tuple(one(item) for item in items)
