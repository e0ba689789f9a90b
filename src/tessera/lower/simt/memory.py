"""SIMT lowering of loads, stores, gathers and scatters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdsl.dialects import scf
from xdsl.ir import Attribute, Block, Operation, SSAValue

from tessera.ir import decisions
from tessera.ir.layouts import LANE, LinearLayout
from tessera.ir.target import memory as target
from tessera.ir.target.arithmetic import CastOp as TargetCastOp
from tessera.ir.target.arithmetic import ElementwiseOp
from tessera.ir.target.types import BufferType, FragmentType, with_element
from tessera.ir.tile.elementwise import CastOp
from tessera.ir.tile.memory import GatherOp, LoadOp, ScatterOp, StoreOp
from tessera.ir.tile.structure import KernelOp, MisalignmentOp
from tessera.ir.tile.types import element_of, shape_of
from tessera.ir.types import dtype_of, element_type, index
from tessera.lower.bounds import Element, SharedElement
from tessera.lower.boxes import BoxOperands, around, box_operands
from tessera.lower.facts import nearest
from tessera.lower.simt.context import SimtContext, is_tile, tile_shape
from tessera.lower.simt.neighbours import vector_of
from tessera.lower.simt.placement import DEFAULT, LOADED, MATRIX, Placements, follow, infers, padded_shape
from tessera.lower.simt.rules import lowers
from tessera.numerics import dtypes

U32, U64 = element_type(dtypes.u32), element_type(dtypes.u64)
SECTOR_BYTES = 32
"""Memory is written in units of this."""
SMALL_BYTES, LEAST_RUN_BYTES = 4096, 8
"""Smaller tiles are stored as threads hold them if the lanes of a warp have so many bytes in a row, or copies."""


@infers(LoadOp)
def _place_load(placements: Placements, op: LoadOp) -> None:
    if is_tile(op.result) and placements.of(op.result) is None:
        shape = tile_shape(op.result)
        placements.place(op.result, placements.default(shape, nearest=_nearest(op)), LOADED)


def _nearest(op: LoadOp | StoreOp) -> list[int]:
    """Return the tile's axes, those first whose elements lie nearest to one another, as far as that is known."""
    kernel = op.tensor.owner.parent_op() if isinstance(op.tensor.owner, Block) else None
    return nearest(kernel, op) if isinstance(kernel, KernelOp) else list(reversed(range(len(op.kept))))


def box_of(context: SimtContext, op: Any, shape: tuple[int, ...]) -> BoxOperands:
    """Describe the box of a slice whose tile takes the (padded) `shape`."""
    return box_operands(context.params, context.scalars, op, context.scalar, context.divisor, shape)


@lowers(MisalignmentOp)
def _misalignment(context: SimtContext, op: MisalignmentOp) -> None:
    params, arg = context.params, context.params.position(op.tensor)
    known = [params.known_stride(arg, axis) for axis in range(len(op.offsets))]
    strides = [
        params.stride(arg, axis) if stride is None else context.scalars.constant(stride)
        for axis, stride in enumerate(known)
    ]
    offsets = [context.scalar(offset) for offset in op.offsets]
    context.define(op.result, context.value(target.MisalignmentOp(params.pointer(arg), offsets, strides)))


def _mask(context: SimtContext, mask: SSAValue | None, layout: LinearLayout | None) -> SSAValue | None:
    if mask is None:
        return None
    return context.tile(mask, layout) if layout is not None else context.scalar(mask)


@lowers(LoadOp)
def _load(context: SimtContext, op: LoadOp) -> None:
    layout = context.layout_of(op.result) if is_tile(op.result) else None
    shape = layout.out_sizes if layout is not None else ()
    box = box_of(context, op, shape)
    if layout is not None:
        box = around(context.params, context.scalars, op, box, context.scalar, context.divisor, shape)
    element = element_of(op.result.type)
    result = FragmentType.of(element, layout) if layout is not None else element
    fill = context.scalar(op.fill) if op.fill is not None else None
    context.define(
        op.result,
        context.value(
            target.LoadOp(
                box.pointer,
                box.offsets,
                box.strides,
                box.sizes,
                result,
                box.axes,
                box.checked,
                box.vector,
                _mask(context, op.mask, layout),
                fill,
                box.seen,
                box.cut,
                box.behind,
                box.early,
                tile=_padded_tile(op.result),
            )
        ),
    )


@lowers(StoreOp)
def _store(context: SimtContext, op: StoreOp) -> None:
    layout: LinearLayout | None = None
    box = box_of(context, op, padded_shape(tile_shape(op.value)) if is_tile(op.value) else ())
    if is_tile(op.value):
        layout = store_layout(context, op, box.vector)
        value = context.tile(op.value, layout)
    else:
        value = context.scalar(op.value)
    context.emit(
        target.StoreOp(
            value,
            box.pointer,
            box.offsets,
            box.strides,
            box.sizes,
            box.axes,
            box.checked,
            box.vector,
            _mask(context, op.mask, layout),
            seen=box.seen,
            cut=box.cut,
            tile=_padded_tile(op.value),
        )
    )


def _padded_tile(value: SSAValue) -> tuple[int, ...]:
    """Return the shape of a tile that fragments pad, nothing of others."""
    shape = tile_shape(value) if is_tile(value) else ()
    return shape if padded_shape(shape) != shape else ()


def store_layout(context: SimtContext, op: StoreOp, vector: int) -> LinearLayout:
    """Return the layout to store in: the value's own if threads have 8 bytes in a row, and a sector together or each.

    Else it is the coalesced one.

    If the thread stores them one by one, the row has to go on in its neighbours; of a product that they hold
    four neighbours or more of not even then, as each sector would be written so many times, and the results are most of
    what products of few terms move. A matrix fragment's rows are short, so
    that storing it as it is would touch every memory sector several times; one trip through shared memory costs less.
    Rows that are not aligned are stored an element at a time: then neighbouring threads take neighbouring elements, for
    the same reason. Where shared memory is full, such a tile stays; others need so little of it in bulk stores that a
    smaller one pays. The last rows of a tensor whose whole tiles the copy engine stores stay as they are: they are few.

    Args:
        context: the state of the lowering.
        op: the store.
        vector: elements that one access may move.
    """
    own, axes = context.layout_of(op.value), _nearest(op)
    branch = op.parent_op()
    if isinstance(branch, scf.IfOp) and decisions.WHOLE_STORE.on(branch):
        return own
    element_bytes = dtype_of(element_of(op.value.type)).bytes
    held = own.contiguous_per_thread(axes[0])
    moved = min(vector, held)
    goes_on = _run(own, axes, held) > held and not (held >= 4 * moved and _is_product(context, op.value))
    run = _run(own, axes, moved) * element_bytes
    whole = max(run, held * element_bytes) >= SECTOR_BYTES
    if held * element_bytes >= 8 and (whole if moved * element_bytes >= 8 else goes_on):
        return own
    fit = 0 in own.columns(LANE) or run >= LEAST_RUN_BYTES
    if fit and own.size * element_bytes < SMALL_BYTES:
        return own
    most = vector if vector * element_bytes < 16 else None
    if most is not None and not context.has_room(own.size * element_bytes):
        return own
    return context.placements.default(tile_shape(op.value), nearest=axes, most=most)


def _is_product(context: SimtContext, value: SSAValue) -> bool:
    """Return whether threads hold a tile as a product left it."""
    placement = context.placements.of(value)
    return placement is not None and placement.strength == MATRIX


def _run(layout: LinearLayout, axes: Sequence[int], moved: int) -> int:
    """Return how many neighbours the lanes of a warp store at once; a row goes on where the one before it ends.

    Args:
        layout: of the tile.
        axes: its axes, those first whose elements lie nearest to one another.
        moved: neighbours along the first one that a lane stores at once.
    """
    units = [layout.unit(axis, bit) for axis in axes for bit in range(layout.out_sizes[axis].bit_length() - 1)]
    units, lanes = units[moved.bit_length() - 1 :], layout.columns(LANE)
    return moved << next((bits for bits, unit in enumerate(units) if unit not in lanes), len(units))


def linear_offsets(context: SimtContext, op: Element, layout: LinearLayout | None) -> tuple[SSAValue, SSAValue | None]:
    """Return the element offset of every index tuple, and the mask of those inside the tensor and not masked off."""
    arg = context.params.position(op.tensor)
    total: SSAValue | None = None if op.indices else context.scalars.constant(0)
    mask = _mask(context, op.mask, layout)
    unproven = context.bounds.unproven(op)
    for axis, value in enumerate(op.indices):
        if axis in unproven:
            mask = _both(context, mask, _below(context, value, arg, axis, layout))
        at = _as_type(context, _placed(context, value, layout), index)
        stride = context.params.known_stride(arg, axis)
        if stride != 1:
            factor = context.scalars.constant(stride) if stride is not None else context.params.stride(arg, axis)
            at = context.value(ElementwiseOp("mul", [at, _spread(context, factor, layout)]))
        total = at if total is None else context.value(ElementwiseOp("add", [total, at]))
    assert total is not None
    return total, _of_tile(context, op, mask, layout)


def _of_tile(
    context: SimtContext, op: Element | SharedElement, mask: SSAValue | None, layout: LinearLayout | None
) -> SSAValue | None:
    """Leave out what pads a tile."""
    inside_tile = context.inside(shape_of(op.indices[0].type), layout) if layout is not None else None
    return mask if inside_tile is None else _both(context, mask, inside_tile)


def buffer_offsets(
    context: SimtContext, op: SharedElement, buffer: SSAValue, layout: LinearLayout | None, element: Attribute = index
) -> tuple[SSAValue, SSAValue | None]:
    """Return the element offset of every index tuple in a buffer, and the mask of those inside and not masked off.

    Args:
        context: the state of the lowering.
        op: the access.
        buffer: what its buffer has become.
        layout: where the elements are, None for a single one.
        element: the type of the offsets.
    """
    shape, type_ = shape_of(op.buffer.type), buffer.type
    assert isinstance(type_, BufferType)
    total: SSAValue | None = None
    mask, unproven = _mask(context, op.mask, layout), context.bounds.unproven_of_buffer(op)
    for axis, (value, size, stride) in enumerate(zip(op.indices, shape, type_.strides, strict=True)):
        placed = _placed(context, value, layout)
        if axis in unproven:
            limit = _spread(context, context.scalars.constant(size, U64), layout)
            mask = _both(context, mask, context.value(ElementwiseOp("lt", [_as_type(context, placed, U64), limit])))
        at = _as_type(context, placed, element)
        if stride != 1:
            factor = _spread(context, context.scalars.constant(stride, element), layout)
            at = context.value(ElementwiseOp("mul", [at, factor]))
        total = at if total is None else context.value(ElementwiseOp("add", [total, at]))
    assert total is not None
    return total, _of_tile(context, op, mask, layout)


def _below(context: SimtContext, value: SSAValue, arg: int, axis: int, layout: LinearLayout | None) -> SSAValue:
    """Return where indices lie inside a dimension: one unsigned comparison, in 32 bits for 32-bit indices."""
    scalars, source = context.scalars, _narrow(context, value, layout)
    narrow, value = source is not None, source or value
    type_ = U32 if narrow else U64
    known = context.params.known_size(arg, axis)
    size = scalars.constant(known) if known is not None else context.params.size(arg, axis)
    # A negative index has the sign bit set, so that it is no smaller than the limit.
    limit = scalars.cast(scalars.binary("minimum", size, 1 << 31) if narrow else size, type_)
    at = _as_type(context, _placed(context, value, layout), type_)
    return context.value(ElementwiseOp("lt", [at, _spread(context, limit, layout)]))


def _narrow(context: SimtContext, value: SSAValue, layout: LinearLayout | None) -> SSAValue | None:
    """Return the 32-bit integers that a value is or was converted from, unless these would have to move again."""
    if dtype_of(element_of(value.type)) == dtypes.i32:
        return value
    owner, lowered = value.owner, context.values.get(value)
    if not isinstance(owner, CastOp) or dtype_of(element_of(owner.source.type)) != dtypes.i32:
        return None
    moves = lowered is not None and isinstance(lowered.type, FragmentType) and lowered.type.linear != layout
    return None if moves else owner.source


def _placed(context: SimtContext, value: SSAValue, layout: LinearLayout | None) -> SSAValue:
    return context.tile(value, layout) if layout is not None else context.scalar(value)


def _spread(context: SimtContext, scalar: SSAValue, layout: LinearLayout | None) -> SSAValue:
    return context.splat(scalar, layout) if layout is not None else scalar


def _as_type(context: SimtContext, value: SSAValue, element: Attribute) -> SSAValue:
    wanted = with_element(value.type, element)
    return value if value.type == wanted else context.value(TargetCastOp(value, element))


def _both(context: SimtContext, left: SSAValue | None, right: SSAValue) -> SSAValue:
    return right if left is None else context.value(ElementwiseOp("and", [left, right]))


@infers(GatherOp)
def _place_gather(placements: Placements, op: GatherOp) -> None:
    place_elements(placements, op, op.result)


def place_elements(placements: Placements, op: Operation, result: SSAValue) -> None:
    """Place single elements where their indices are, else as any tile of their shape."""
    follow(placements, op)
    if is_tile(result) and placements.of(result) is None:
        placements.place(result, placements.default(tile_shape(result)), DEFAULT)


@lowers(GatherOp)
def _gather(context: SimtContext, op: GatherOp) -> None:
    layout = context.layout_of(op.result) if is_tile(op.result) else None
    offsets, mask = linear_offsets(context, op, layout)
    fill = context.scalar(op.fill) if op.fill is not None else None
    pointer, vector = context.params.pointer(context.params.position(op.tensor)), vector_of(context, op, layout) or ()
    context.define(op.result, context.value(target.GatherOp(pointer, offsets, mask, fill, vector)))


@lowers(ScatterOp)
def _scatter(context: SimtContext, op: ScatterOp) -> None:
    layout = context.layout_of(op.value) if is_tile(op.value) else None
    offsets, mask = linear_offsets(context, op, layout)
    value = context.tile(op.value, layout) if layout is not None else context.scalar(op.value)
    pointer = context.params.pointer(context.params.position(op.tensor))
    context.emit(target.ScatterOp(value, pointer, offsets, mask, vector_of(context, op, layout) or ()))
