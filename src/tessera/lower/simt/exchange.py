"""SIMT lowering of exchanges: other names for registers, shuffles of lanes, and shared memory between warps."""

from __future__ import annotations

from xdsl.ir import SSAValue

from tessera.ir.layouts import partner
from tessera.ir.target.arithmetic import ElementwiseOp, IotaOp
from tessera.ir.target.exchange import ExchangeOp as ExchangeThreadsOp
from tessera.ir.target.exchange import ExchangeWarpsOp
from tessera.ir.target.types import BufferType, FragmentType
from tessera.ir.tile.exchange import ExchangeOp, is_whole
from tessera.ir.types import element_type
from tessera.lower.simt.context import SimtContext, tile_shape
from tessera.lower.simt.placement import ACCESS_BYTES, follow, infers
from tessera.lower.simt.rules import lowers
from tessera.numerics import dtypes

ROUND_BYTES = 32 << 10
"""Shared memory that warps exchange registers through at a time."""

infers(ExchangeOp)(follow)


@lowers(ExchangeOp)
def _exchange(context: SimtContext, op: ExchangeOp) -> None:
    layout = context.layout_of(op.source).unique_registers()
    own, axis, bits = context.tile(op.source, layout), op.axis.data, op.bits.data
    result = exchanged(context, own, axis, bits)
    size = tile_shape(op.source)[axis]
    if not is_whole(size, bits):
        result = context.value(ElementwiseOp("select", [_has_partner(context, own, axis, bits, size), result, own]))
    context.define(op.result, context.convert(result, context.layout_of(op.result)))


def exchanged(context: SimtContext, fragment: SSAValue, axis: int, bits: int) -> SSAValue:
    """Return a fragment whose element `i` along `axis` is the one at `i ^ bits`; each thread holds elements once."""
    type_ = fragment.type
    assert isinstance(type_, FragmentType)
    return exchanged_by(context, fragment, partner(type_.linear, axis, bits))


def exchanged_by(
    context: SimtContext,
    fragment: SSAValue,
    bits: tuple[int, int, int],
    lanes: SSAValue | None = None,
    warps: SSAValue | None = None,
) -> SSAValue:
    """Return what the partners hold whose registers, lanes and warps differ in these bits.

    Args:
        context: the lowering.
        fragment: holds each element once in a thread.
        bits: of registers, lanes and warps.
        lanes: more bits of lanes, known at run time.
        warps: more bits of warps, known at run time.
    """
    type_ = fragment.type
    assert isinstance(type_, FragmentType)
    layout, (register, lane, warp) = type_.linear, bits
    if not warp and warps is None:
        return context.value(ExchangeThreadsOp(fragment, register, lane, lanes))
    assert lanes is None, "a step knows its bits of lanes, or those of warps"
    together = min(layout.registers, max(1, ACCESS_BYTES // type_.dtype.bytes))
    row = layout.lanes * layout.warps * together
    rows = min(layout.registers // together, max(1, ROUND_BYTES // (row * type_.dtype.bytes)))
    buffer = context.transient(BufferType.of((rows, row), type_.element, "shared"))
    return context.value(ExchangeWarpsOp(fragment, buffer, register, lane, warp, warps))


def _has_partner(context: SimtContext, like: SSAValue, axis: int, bits: int, size: int) -> SSAValue:
    assert isinstance(like.type, FragmentType)
    i32, layout = element_type(dtypes.i32), like.type.linear

    def splat(value: int) -> SSAValue:
        return context.splat(context.scalars.constant(value, i32), layout)

    at = context.value(IotaOp(axis, i32, layout))
    other = context.value(ElementwiseOp("xor", [at, splat(bits)]))
    return context.value(ElementwiseOp("lt", [other, splat(size)]))
