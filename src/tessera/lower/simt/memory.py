"""SIMT lowering of loads, stores, gathers, scatters and atomics."""

from __future__ import annotations

from typing import Any

from xdsl.ir import Block, SSAValue

from tessera.ir.layouts import LinearLayout
from tessera.ir.target import memory as target
from tessera.ir.target.arithmetic import CastOp, ElementwiseOp
from tessera.ir.target.types import FragmentType, with_element
from tessera.ir.tile.memory import AtomicOp, GatherOp, LoadOp, ScatterOp, StoreOp
from tessera.ir.tile.structure import KernelOp
from tessera.ir.tile.types import element_of, shape_of
from tessera.ir.types import dtype_of, index
from tessera.lower.boxes import BoxOperands, box_operands
from tessera.lower.simt.context import SimtContext, is_tile, tile_shape
from tessera.lower.simt.placement import DEFAULT, LOADED, Placements, follow, infers, padded_shape
from tessera.lower.simt.rules import lowers


@infers(LoadOp)
def _place_load(placements: Placements, op: LoadOp) -> None:
    if is_tile(op.result) and placements.of(op.result) is None:
        shape = tile_shape(op.result)
        placements.place(op.result, placements.default(shape, _fastest(op)), LOADED)


def _fastest(op: LoadOp | StoreOp) -> int | None:
    """Return the tile's axis whose elements are neighbours in memory where that is known and not the last."""
    kernel = op.tensor.owner.parent_op() if isinstance(op.tensor.owner, Block) else None
    if not isinstance(kernel, KernelOp):
        return None
    steps = [kernel.info_of(op.tensor).strides[axis] for axis in op.kept]
    return steps.index(1) if 1 in steps[:-1] and steps[-1] != 1 else None


def box_of(context: SimtContext, op: Any, shape: tuple[int, ...]) -> BoxOperands:
    """Describe the box of a slice whose tile takes the (padded) `shape`."""
    return box_operands(context.params, context.scalars, op, context.scalar, context.divisor, shape)


def _mask(context: SimtContext, mask: SSAValue | None, layout: LinearLayout | None) -> SSAValue | None:
    if mask is None:
        return None
    return context.tile(mask, layout) if layout is not None else context.scalar(mask)


@lowers(LoadOp)
def _load(context: SimtContext, op: LoadOp) -> None:
    layout = context.layout_of(op.result) if is_tile(op.result) else None
    shape = layout.out_sizes if layout is not None else ()
    box = box_of(context, op, shape)
    element = element_of(op.result.type)
    result = FragmentType.of(element, layout) if layout is not None else element
    fill = context.scalar(op.fill) if op.fill is not None else None
    context.define(
        op.result,
        context.value(
            target.LoadOp(
                box.pointer, box.offsets, box.strides, box.sizes, result, box.axes, box.checked, box.vector,
                _mask(context, op.mask, layout), fill,
            )
        ),
    )  # fmt: skip


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
            value, box.pointer, box.offsets, box.strides, box.sizes, box.axes, box.checked, box.vector,
            _mask(context, op.mask, layout),
        )
    )  # fmt: skip


def store_layout(context: SimtContext, op: StoreOp, vector: int) -> LinearLayout:
    """Return the layout to store in: the value's own if a thread has 16 bytes in a row, else the coalesced one.

    A matrix fragment's rows are short, so that storing it as it is would touch every memory sector several
    times; one trip through shared memory costs less. Rows that are not aligned are stored an element at a time: then
    neighbouring threads take neighbouring elements, for the same reason.

    Args:
        context: the state of the lowering.
        op: the store.
        vector: elements that one access may move.
    """
    own = context.layout_of(op.value)
    last = len(own.out_sizes) - 1
    element_bytes = dtype_of(element_of(op.value.type)).bytes
    if own.contiguous_per_thread(last) * element_bytes >= 8 or own.size * element_bytes < 4096:
        return own
    most = vector if vector * element_bytes < 16 else None
    return context.placements.default(tile_shape(op.value), most=most)


def _linear_offsets(
    context: SimtContext, op: Any, layout: LinearLayout | None
) -> tuple[SSAValue, SSAValue | None]:
    """Return the element offset of every index tuple, and the mask of those inside the tensor and not masked off."""
    arg = context.params.position(op.tensor)

    def part(value: SSAValue) -> SSAValue:
        lowered = context.tile(value, layout) if layout is not None else context.scalar(value)
        wide = with_element(lowered.type, index)
        return lowered if lowered.type == wide else context.value(CastOp(lowered, index))

    def spread(scalar: SSAValue) -> SSAValue:
        return context.splat(scalar, layout) if layout is not None else scalar

    total: SSAValue | None = None
    mask = _mask(context, op.mask, layout)
    for axis, value in enumerate(op.indices):
        at = part(value)
        known = context.params.known_size(arg, axis)
        size = context.scalars.constant(known) if known is not None else context.params.size(arg, axis)
        for fn, bound in (("ge", context.scalars.constant(0)), ("lt", size)):
            inside = context.value(ElementwiseOp(fn, [at, spread(bound)]))
            mask = inside if mask is None else context.value(ElementwiseOp("and", [mask, inside]))
        stride = context.params.known_stride(arg, axis)
        if stride != 1:
            factor = (
                context.scalars.constant(stride) if stride is not None else context.params.stride(arg, axis)
            )
            at = context.value(ElementwiseOp("mul", [at, spread(factor)]))
        total = at if total is None else context.value(ElementwiseOp("add", [total, at]))
    assert total is not None
    if layout is not None:
        inside_tile = context.inside(shape_of(op.indices[0].type), layout)
        if inside_tile is not None:
            mask = inside_tile if mask is None else context.value(ElementwiseOp("and", [mask, inside_tile]))
    return total, mask


@infers(GatherOp, AtomicOp)
def _place_gather(placements: Placements, op: GatherOp | AtomicOp) -> None:
    follow(placements, op)
    if is_tile(op.result) and placements.of(op.result) is None:
        shape = tile_shape(op.result)
        placements.place(op.result, placements.default(shape), DEFAULT)


@lowers(GatherOp)
def _gather(context: SimtContext, op: GatherOp) -> None:
    layout = context.layout_of(op.result) if is_tile(op.result) else None
    offsets, mask = _linear_offsets(context, op, layout)
    fill = context.scalar(op.fill) if op.fill is not None else None
    pointer = context.params.pointer(context.params.position(op.tensor))
    context.define(op.result, context.value(target.GatherOp(pointer, offsets, mask, fill)))


@lowers(ScatterOp)
def _scatter(context: SimtContext, op: ScatterOp) -> None:
    layout = context.layout_of(op.value) if is_tile(op.value) else None
    offsets, mask = _linear_offsets(context, op, layout)
    value = context.tile(op.value, layout) if layout is not None else context.scalar(op.value)
    pointer = context.params.pointer(context.params.position(op.tensor))
    context.emit(target.ScatterOp(value, pointer, offsets, mask))


@lowers(AtomicOp)
def _atomic(context: SimtContext, op: AtomicOp) -> None:
    layout = context.layout_of(op.result) if is_tile(op.result) else None

    def operand(value: SSAValue) -> SSAValue:
        return context.tile(value, layout) if layout is not None else context.scalar(value)

    offsets, mask = _linear_offsets(context, op, layout)
    compare = operand(op.compare) if op.compare is not None else None
    pointer = context.params.pointer(context.params.position(op.tensor))
    lowered = target.AtomicOp(
        op.fn.data, operand(op.value), pointer, offsets, mask, compare, op.order.data, op.scope.data
    )
    context.define(op.result, context.value(lowered))
