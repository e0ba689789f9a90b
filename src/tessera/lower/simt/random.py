"""SIMT lowering of Philox: ten rounds of 32-bit multiplications, written in elementwise ops."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from tessera.ir.layouts import LinearLayout
from tessera.ir.target.arithmetic import CastOp, ElementwiseOp
from tessera.ir.tile.random import PhiloxOp
from tessera.ir.types import element_type
from tessera.lower.philox import philox_rounds
from tessera.lower.simt.context import SimtContext
from tessera.lower.simt.placement import follow, infers
from tessera.lower.simt.rules import lazy, lowers
from tessera.numerics import dtypes

infers(PhiloxOp)(follow)


@lowers(PhiloxOp)
def _philox(context: SimtContext, op: PhiloxOp) -> None:
    placement = context.placements.of(op.r0)
    if placement is not None:
        for result, value in zip(op.results, _words(context, op, placement.layout), strict=True):
            context.define(result, value)


@lazy(PhiloxOp)
def _lazy_philox(context: SimtContext, op: PhiloxOp, layout: LinearLayout) -> SSAValue:
    words = _words(context, op, layout)
    for result, value in zip(op.results, words, strict=True):
        context.remember(result, layout, value)
    return words[0]


def _words(context: SimtContext, op: PhiloxOp, layout: LinearLayout) -> Sequence[SSAValue]:
    """Return the four words of each counter, computed in a layout."""
    u32, i64 = element_type(dtypes.u32), element_type(dtypes.i64)

    def binary(fn: str, a: SSAValue, b: SSAValue) -> SSAValue:
        return context.value(ElementwiseOp(fn, [a, b]))

    def word(wide: SSAValue, shift: int) -> SSAValue:
        if shift:
            amount = context.scalars.constant(shift, i64)
            wide = binary("shr", wide, context.splat(amount, layout))
        return context.value(CastOp(wide, u32))

    counter = context.value(CastOp(context.tile(op.counter, layout), i64))
    seed = context.splat(context.value(CastOp(context.scalar(op.seed), i64)), layout)
    zero = context.splat(context.scalars.constant(0, u32), layout)
    words = (word(counter, 0), word(counter, 32), zero, zero)
    keys = (word(seed, 0), word(seed, 32))

    def constant(value: int) -> SSAValue:
        return context.splat(context.scalars.constant(value, u32), layout)

    return philox_rounds(words, keys, constant, binary)
