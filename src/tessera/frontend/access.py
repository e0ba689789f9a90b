"""Loads and stores of views: boxes, index tiles, masks."""

from __future__ import annotations

from typing import Any, cast

from xdsl.ir import Attribute, SSAValue

from tessera.errors import TypeMismatchError
from tessera.frontend.builder import Builder
from tessera.frontend.convert import (
    apply,
    broadcast_shapes,
    broadcast_to,
    cast_to,
    check_rounding,
    constant,
    operand,
    reshape_to,
    to_ssa,
)
from tessera.frontend.values import (
    AnyView,
    At,
    Pick,
    Scalar,
    Shared,
    SharedPart,
    Span,
    Tile,
    Value,
    View,
    show,
    wrap,
)
from tessera.ir.tile.elementwise import ArangeOp
from tessera.ir.tile.memory import GatherOp, LoadOp, ScatterOp, StoreOp
from tessera.ir.tile.shared import BarrierOp, SharedGatherOp, SharedScatterOp, SharedStoreOp
from tessera.ir.tile.types import describe, shape_of
from tessera.ir.types import element_type
from tessera.numerics import dtypes


def raw_shape(view: AnyView) -> tuple[int, ...]:
    """Return the shape that a view's elements have in the IR op (new axes not counted)."""
    if not view.picks:
        return tuple(axis.size for axis in view.axes if isinstance(axis, Span))
    shape: list[int] = []
    picked = broadcast_shapes([axis.index.shape for axis in view.axes if isinstance(axis, Pick)], "index")
    done = False
    for axis in view.axes:
        if isinstance(axis, Span):
            shape.append(axis.size)
        elif not done:
            shape.extend(picked)
            done = True
    return tuple(shape)


def view_shape(view: AnyView) -> tuple[int, ...]:
    """Return the shape of the tile that a view loads."""
    shape = list(raw_shape(view))
    for position in view.new_axes:
        shape.insert(position, 1)
    return tuple(shape)


def _box(view: View) -> tuple[list[SSAValue], list[int], list[int]]:
    offsets = [axis.offset for axis in view.axes if not isinstance(axis, Pick)]
    sizes = [axis.size if isinstance(axis, Span) else 1 for axis in view.axes]
    return offsets, sizes, [i for i, axis in enumerate(view.axes) if isinstance(axis, At)]


def predicate_for(b: Builder, view: AnyView, required: bool) -> SSAValue | None:
    """Return the mask that the enclosing `if`s on tiles put on a view's elements, in the op's shape.

    Args:
        b: the builder.
        view: what is accessed.
        required: whether leaving the mask out would be wrong; a bounded load is safe without.

    Raises:
        TypeMismatchError: `predicate-shape` when the condition does not broadcast to the view.
    """
    mask = mask_of_shape(b, view_shape(view), _name(view), required)
    return None if mask is None else reshape_to(b, mask, raw_shape(view))


def mask_of_shape(b: Builder, shape: tuple[int, ...], what: str, required: bool = True) -> SSAValue | None:
    """Return the mask that the enclosing `if`s on tiles put on elements of a shape.

    Args:
        b: the builder.
        shape: the shape.
        what: the elements, in an error's words.
        required: whether leaving the mask out would be wrong.

    Raises:
        TypeMismatchError: `predicate-shape` when the condition does not broadcast to the shape.
    """
    if b.predicate is None:
        return None
    own = b.predicate.shape
    padded = (1,) * (len(shape) - len(own)) + own
    if len(own) > len(shape) or any(a not in (1, c) for a, c in zip(padded, shape, strict=True)):
        if not required:
            return None
        raise TypeMismatchError(
            f"inside an `if` on {describe(b.predicate.type)}, {what} has the shape {shape}",
            code="predicate-shape",
            help="the condition must broadcast to the shape of what is accessed"
            if shape
            else "an element is accessed once: give it ts.tile.sum(ts.tile.where(condition, x, 0)), ask "
            "`if ts.tile.any(condition)`, or take an index tile, A[ts.tile.zeros((64,), ts.i32)]",
        )
    return broadcast_to(b, b.predicate.ssa, shape)


def _name(view: AnyView) -> str:
    return f"{view.tensor.param.name}[...]" if isinstance(view, View) else str(view)


def shared_indices(b: Builder, target: SharedPart | Shared) -> list[SSAValue]:
    """Return one i64 index per dimension of a shared buffer: those of a part, or all of them."""
    if isinstance(target, SharedPart):
        return index_tiles(b, target)
    element = element_type(dtypes.i64)
    spans = [Tile(b.emit(ArangeOp(size, element)).result) for size in target.shape]
    return [_spread(b, span.ssa, target.shape, position) for position, span in enumerate(spans)]


def read(b: Builder, view: AnyView) -> Tile | Scalar:
    """Return what the elements that a view names were when it was evaluated."""
    moment = view.moment
    if moment.value is None and b.is_now(moment):
        return load_now(b, view)
    if moment.value is None:
        with b.back_at(moment):
            moment.value = load_now(b, view)
    return moment.value


def load_now(b: Builder, view: AnyView) -> Tile | Scalar:
    """Load the elements that a view names."""
    return load_view(b, view) if isinstance(view, View) else load_part(b, view)


def load_view(b: Builder, view: View, fill: Any = None) -> Tile | Scalar:
    """Load the elements that a view names."""
    tensor, element = view.tensor, view.tensor.type.element
    fill_value = None if fill is None else to_ssa(b, operand(b, fill, "fill"), element)
    if fill_value is not None and shape_of(fill_value.type):
        raise TypeMismatchError(
            "fill is a tile, not a number", code="not-a-value", help="use ts.tile.where after loading"
        )
    mask = predicate_for(b, view, required=view.picks)
    if view.is_box:
        offsets, sizes, drop = _box(view)
        loaded = b.emit(LoadOp(tensor.ssa, offsets, sizes, drop, mask, fill_value)).result
    else:
        loaded = b.emit(GatherOp(tensor.ssa, index_tiles(b, view), mask, fill_value)).result
    if view.new_axes:
        loaded = _to_shape(b, loaded, view_shape(view))
    return cast(Any, wrap(loaded, tensor.policy))


def _to_shape(b: Builder, value: SSAValue, shape: tuple[int, ...]) -> SSAValue:
    return reshape_to(b, value, shape) if shape_of(value.type) else broadcast_to(b, value, shape)


def load_part(b: Builder, part: SharedPart) -> Tile | Scalar:
    """Read the elements of a shared buffer that a part names."""
    buffer, indices = part.buffer, index_tiles(b, part)
    mask = predicate_for(b, part, required=part.picks)
    loaded = b.emit(SharedGatherOp(buffer.ssa, indices, mask)).result
    if part.new_axes:
        loaded = _to_shape(b, loaded, view_shape(part))
    return cast(Any, wrap(loaded, buffer.policy))


def store_view(b: Builder, view: View, value: Any) -> None:
    """Store `value`, broadcast to the view's shape and converted to the tensor's dtype.

    Raises:
        TypeMismatchError: `shape-mismatch`.
    """
    tensor = view.tensor
    b.require_program(f"a store to {tensor.param.name}")
    check_rounding(tensor.param.policy)
    stored = _stored(b, view, value, tensor.type.element, f"store to {tensor.param.name}", tensor.param.policy.saturate)
    mask = predicate_for(b, view, required=True)
    if view.is_box:
        offsets, sizes, drop = _box(view)
        b.emit(StoreOp(stored, tensor.ssa, offsets, sizes, drop, mask))
    else:
        b.emit(ScatterOp(stored, tensor.ssa, index_tiles(b, view), mask))
    b.mark_written(tensor)


def store_part(b: Builder, part: SharedPart, value: Any) -> None:
    """Write `value`, broadcast to the part's shape and converted to the buffer's dtype.

    Raises:
        TypeMismatchError: `shape-mismatch`.
    """
    b.require_program("a store to shared memory")
    stored = _stored(b, part, value, cast(Any, part.buffer.type).element, "store to a shared buffer", False)
    mask = predicate_for(b, part, required=True)
    b.emit(SharedScatterOp(stored, part.buffer.ssa, index_tiles(b, part), mask))


def _stored(b: Builder, view: AnyView, value: Any, element: Attribute, what: str, saturate: bool) -> SSAValue:
    """Return what is written to a view, of its shape and dtype."""
    ready = operand(b, value, what)
    if isinstance(ready, Value):
        stored = cast_to(b, ready.ssa, element, saturate)
    else:
        stored = constant(b, ready, element)
    raw = raw_shape(view)
    if not view.new_axes and shape_of(stored.type) == raw:
        return stored
    stored = _store_shape(b, stored, view_shape(view), what)
    return reshape_to(b, stored, raw) if raw or not shape_of(stored.type) else _only_element(view)


def _only_element(view: AnyView) -> SSAValue:
    what = view.tensor.param.name if isinstance(view, View) else describe(view.buffer.type)
    raise TypeMismatchError(
        f"store to one element of {what} through None",
        code="bad-index",
        help="leave None out",
    )


def _store_shape(b: Builder, value: SSAValue, shape: tuple[int, ...], what: str) -> SSAValue:
    own = shape_of(value.type)
    if not shape:
        raise TypeMismatchError(
            f"{what}: {describe(value.type)} cannot be stored to one element",
            code="shape-mismatch",
            help="index with slices, or reduce the tile to a scalar",
        )
    while len(own) > len(shape) and own[0] == 1:
        own = own[1:]
    padded = (1,) * (len(shape) - len(own)) + own
    if len(own) > len(shape) or any(a not in (1, c) for a, c in zip(padded, shape, strict=True)):
        raise TypeMismatchError(
            f"{what}: {describe(value.type)} does not fit the slice of shape {shape}",
            code="shape-mismatch",
            help="slice as much as the tile holds, or reshape the tile",
        )
    return broadcast_to(b, reshape_to(b, value, own) if own else value, shape)


def index_tiles(b: Builder, view: AnyView) -> list[SSAValue]:
    """Return one i64 index per dimension of a tensor or shared buffer, of the view's shape."""
    shape = raw_shape(view)
    element = element_type(dtypes.i64)
    picked = broadcast_shapes([axis.index.shape for axis in view.axes if isinstance(axis, Pick)], "index")
    indices: list[SSAValue] = []
    position, picked_at = 0, None
    for axis in view.axes:
        if isinstance(axis, Pick):
            picked_at = position if picked_at is None else picked_at
            tile = broadcast_to(b, cast_to(b, axis.index.ssa, element), picked)
            indices.append(_spread(b, tile, shape, picked_at))
        elif isinstance(axis, At):
            if view.picks and picked_at is None:
                picked_at = position
            offset = cast_to(b, axis.offset, element)
            indices.append(broadcast_to(b, offset, shape) if shape else offset)
        else:
            indices.append(_spread(b, _counted(b, axis), shape, position))
        if isinstance(axis, Span):
            position += 1
        elif picked_at == position:
            position += len(picked)
    return indices


def _counted(b: Builder, span: Span) -> SSAValue:
    """Return the indices of a span as a one-dimensional tile."""
    element = element_type(dtypes.i64)
    count = Tile(b.emit(ArangeOp(span.size, element)).result)
    if span.step != 1:
        count = apply(b, "mul", count, span.step)
    return apply(b, "add", count, Scalar(cast_to(b, span.offset, element))).ssa


def _spread(b: Builder, tile: SSAValue, shape: tuple[int, ...], position: int) -> SSAValue:
    """Put the dimensions of `tile` at `position` of `shape` and repeat it along the others."""
    own = shape_of(tile.type)
    padded = (1,) * position + own + (1,) * (len(shape) - position - len(own))
    return broadcast_to(b, reshape_to(b, tile, padded), shape)


def store_shared(b: Builder, buffer: Shared, value: Any) -> None:
    """Write a value to a whole shared buffer; under an `if` on a tile, only where the condition holds.

    Raises:
        TypeMismatchError: `shape-mismatch`.
    """
    b.require_program("a store to shared memory")
    ready = operand(b, value, "store to a shared buffer")
    element = cast(Any, buffer.type).element
    stored = _store_shape(b, to_ssa(b, ready, element), buffer.shape, "store to a shared buffer")
    if b.predicate is not None:
        stored = apply(b, "select", b.predicate, Tile(stored), buffer).ssa
        if shape_of(stored.type) != buffer.shape:
            raise TypeMismatchError(
                f"inside an `if` on {describe(b.predicate.type)}, the buffer is {describe(buffer.type)}",
                code="predicate-shape",
                help="the condition must broadcast to the buffer's shape",
            )
        # The old contents were read by lanes that need not be the ones that write them back.
        b.emit(BarrierOp())
    b.emit(SharedStoreOp(stored, buffer.ssa))


def store_to(b: Builder, target: Any, value: Any) -> None:
    """Store to a slice or a shared buffer.

    Raises:
        TypeMismatchError: `not-a-slice` for anything else.
    """
    if isinstance(target, View):
        store_view(b, target, value)
    elif isinstance(target, Shared):
        store_shared(b, target, value)
    elif isinstance(target, SharedPart):
        store_part(b, target, value)
    else:
        help = "store to a slice of a tensor (C[m:m+64, :] = x) or to a shared buffer; tiles are values"
        raise TypeMismatchError(f"cannot store to {show(target)}", code="not-a-slice", help=help)
