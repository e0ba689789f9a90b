"""SIMT lowering of atomics and fences.

A program's threads are one agent: what any of them did before a release is released, and all acquire together. An order
of the thread that does the access becomes one of the program by barriers among its threads, which hand on what each of
them has seen (PTX ISA, "Memory consistency model": barriers synchronize, and causality is transitive)::

    %old = atomic ... order "acq_rel"      =>    barrier; %old = atomic ... order "acq_rel"; barrier
"""

from __future__ import annotations

from xdsl.ir import SSAValue

from tessera.ir.atomics import acquires, releases
from tessera.ir.layouts import LinearLayout
from tessera.ir.target import atomics as target
from tessera.ir.target.arithmetic import ExtractOp
from tessera.ir.target.memory import BarrierOp, BufferLoadOp, BufferStoreOp
from tessera.ir.target.types import BufferType, FragmentType
from tessera.ir.tile.atomics import AtomicOp, FenceOp, SharedAtomicOp
from tessera.lower.simt.context import SimtContext, is_tile
from tessera.lower.simt.memory import buffer_offsets, linear_offsets, place_elements
from tessera.lower.simt.order import exclusive
from tessera.lower.simt.placement import Placements, infers
from tessera.lower.simt.rules import lowers


@infers(AtomicOp, SharedAtomicOp)
def _place_atomic(placements: Placements, op: AtomicOp | SharedAtomicOp) -> None:
    if op.result is not None:
        place_elements(placements, op, op.result)


@lowers(AtomicOp)
def _atomic(context: SimtContext, op: AtomicOp) -> None:
    layout = _layout(context, op)
    offsets, mask = linear_offsets(context, op, layout)
    pointer = context.params.pointer(context.params.position(op.tensor))
    _access(context, op, pointer, offsets, mask)


@lowers(SharedAtomicOp)
def _shared_atomic(context: SimtContext, op: SharedAtomicOp) -> None:
    layout, buffer = _layout(context, op), context.scalar(op.buffer)
    offsets, mask = buffer_offsets(context, op, buffer, layout)
    _access(context, op, context.value(target.AddressOp(buffer)), offsets, mask)


def _layout(context: SimtContext, op: AtomicOp | SharedAtomicOp) -> LinearLayout | None:
    placed = [value for value in (op.result, *op.indices) if value is not None and is_tile(value)]
    return context.layout_of(placed[0]) if placed else None


def _access(
    context: SimtContext,
    op: AtomicOp | SharedAtomicOp,
    pointer: SSAValue,
    offsets: SSAValue,
    mask: SSAValue | None,
) -> None:
    layout = _layout(context, op)

    def operand(value: SSAValue | None) -> SSAValue | None:
        if value is None:
            return None
        return context.tile(value, layout) if layout is not None else context.scalar(value)

    value, compare = operand(op.value), operand(op.compare)
    fn, order = op.fn.data, op.order.data
    if releases(fn, order):
        context.emit(BarrierOp())
    atomic = target.AtomicOp(fn, value, pointer, offsets, mask, compare, order, op.scope.data)
    context.emit(atomic)
    old, waited = atomic.result, False
    if op.result is not None and old is not None:
        told = told_to_all(context, old) if op.result.uses.get_length() else old
        context.define(op.result, told)
        waited = told is not old
    if acquires(fn, order) and not waited:
        context.emit(BarrierOp())


def told_to_all(context: SimtContext, old: SSAValue) -> SSAValue:
    """Return old values of elements in all threads that hold a copy of them, not only in those that updated them.

    Where that is another value, all threads have waited for those that updated.
    """
    scalar = not isinstance(old.type, FragmentType)
    fragment = context.splat(old, context.placements.default((1,))) if scalar else old
    assert isinstance(fragment.type, FragmentType)
    if exclusive(fragment.type.linear):
        return old
    buffer = context.transient(BufferType.of(fragment.type.shape, fragment.type.element, "shared"))
    context.emit(BufferStoreOp(fragment, buffer, owned=True))
    context.emit(BarrierOp())
    if not scalar:
        return context.value(BufferLoadOp(buffer, fragment.type))
    alone = FragmentType.of(fragment.type.element, fragment.type.linear.drop_axis(0))
    return context.value(ExtractOp(context.value(BufferLoadOp(buffer, alone, axes=[]))))


@lowers(FenceOp)
def _fence(context: SimtContext, op: FenceOp) -> None:
    """Every thread fences its own accesses, and what barriers have told it of the others'."""
    if releases("fence", op.order.data):
        context.emit(BarrierOp())
    context.emit(target.FenceOp(op.order.data, op.scope.data))
    if acquires("fence", op.order.data):
        context.emit(BarrierOp())
