"""SIMT lowering of arithmetic, constants and casts."""

from __future__ import annotations

from xdsl.ir import Operation, SSAValue

from tessera.ir import decisions
from tessera.ir.layouts import REGISTER, LinearLayout
from tessera.ir.target import arithmetic as target
from tessera.ir.target.types import FragmentType
from tessera.ir.tile.elementwise import ArangeOp, BitcastOp, CastOp, ConstantOp, ElementwiseOp, RoundTf32Op, SplatOp
from tessera.ir.tile.types import element_of
from tessera.ir.types import dtype_of
from tessera.lower.simt.context import SimtContext, is_tile
from tessera.lower.simt.placement import Placements, follow, infers
from tessera.lower.simt.rules import lazy, lowers

WORD_BITS = 32
"""Of a register."""

infers(ElementwiseOp, BitcastOp, RoundTf32Op)(follow)


@infers(CastOp)
def _place_cast(placements: Placements, op: CastOp) -> None:
    """Place a cast like its source; neighbours along rows that come to share a register follow each other in it."""
    follow(placements, op)
    placed = placements.of(op.result)
    if placed is not None and placed.layout.out_sizes:
        shared = WORD_BITS // dtype_of(element_of(op.result.type)).bits
        placements.place(op.result, _in_order(placed.layout, shared), placed.strength)


def _in_order(layout: LinearLayout, count: int) -> LinearLayout:
    """Return a layout with the elements that are fewer than `count` apart along rows in each thread's first registers.

    Products take 8-bit operands so, whose weights may have been computed in the order of 32-bit results.
    """
    steps = layout.in_bases(REGISTER)
    nearest = sorted(step for step in steps if 0 < step[-1] < count and not any(step[:-1]))
    others = [step for step in steps if step not in nearest]
    return LinearLayout.make(dict(layout.bases) | {REGISTER: [*nearest, *others]}, layout.out_sizes, layout.out_dims)


@lowers(ConstantOp)
def _constant(context: SimtContext, op: ConstantOp) -> None:
    context.define(op.result, context.scalars.constant(op.python_value, op.result.type))


@lazy(SplatOp)
def _splat(context: SimtContext, op: SplatOp, layout: LinearLayout) -> SSAValue:
    return context.splat(context.scalar(op.value), layout)


@lazy(ArangeOp)
def _arange(context: SimtContext, op: ArangeOp, layout: LinearLayout) -> SSAValue:
    return context.value(target.IotaOp(0, element_of(op.result.type), layout))


def _placed(context: SimtContext, op: Operation) -> LinearLayout | None:
    placement = context.placements.of(op.results[0])
    return placement.layout if placement else None


@lowers(ElementwiseOp)
def _elementwise(context: SimtContext, op: ElementwiseOp) -> None:
    if not is_tile(op.result):
        if op.fn.data in ("add", "sub", "mul", "floordiv", "mod") and str(op.result.type) == "index":
            first, second = (context.scalar(arg) for arg in op.args)
            context.define(op.result, context.scalars.binary(op.fn.data, first, second))
            return
        context.define(
            op.result,
            context.value(target.ElementwiseOp(op.fn.data, [context.scalar(arg) for arg in op.args])),
        )
        return
    layout = _placed(context, op)
    if layout is not None:
        context.define(op.result, _lazy_elementwise(context, op, layout))


@lazy(ElementwiseOp)
def _lazy_elementwise(context: SimtContext, op: ElementwiseOp, layout: LinearLayout) -> SSAValue:
    args = [context.tile(arg, layout) for arg in op.args]
    if decisions.SKIPS_ONES.on(op):
        factors, source = sorted(args, key=lambda arg: not isinstance(arg.owner, target.RelayoutOp))
        return context.value(target.ScaleOp(source, factors))
    return context.value(target.ElementwiseOp(op.fn.data, args))


@lowers(CastOp)
def _cast(context: SimtContext, op: CastOp) -> None:
    if not is_tile(op.result):
        source = context.scalar(op.source)
        context.define(op.result, context.value(target.CastOp(source, op.result.type, op.saturate is not None)))
        return
    layout = _placed(context, op)
    if layout is not None:
        context.define(op.result, _lazy_cast(context, op, layout))


@lazy(CastOp)
def _lazy_cast(context: SimtContext, op: CastOp, layout: LinearLayout) -> SSAValue:
    source = context.tile(op.source, layout)
    assert isinstance(source.type, FragmentType)
    return context.value(target.CastOp(source, element_of(op.result.type), op.saturate is not None))


@lowers(BitcastOp)
def _bitcast(context: SimtContext, op: BitcastOp) -> None:
    if not is_tile(op.result):
        context.define(op.result, context.value(target.BitcastOp(context.scalar(op.source), op.result.type)))
        return
    layout = _placed(context, op)
    if layout is not None:
        context.define(op.result, _lazy_bitcast(context, op, layout))


@lazy(BitcastOp)
def _lazy_bitcast(context: SimtContext, op: BitcastOp, layout: LinearLayout) -> SSAValue:
    return context.value(target.BitcastOp(context.tile(op.source, layout), element_of(op.result.type)))


@lowers(RoundTf32Op)
def _round_tf32(context: SimtContext, op: RoundTf32Op) -> None:
    layout = _placed(context, op)
    if layout is not None:
        context.define(op.result, _lazy_round_tf32(context, op, layout))


@lazy(RoundTf32Op)
def _lazy_round_tf32(context: SimtContext, op: RoundTf32Op, layout: LinearLayout) -> SSAValue:
    return context.value(target.RoundTf32Op(context.tile(op.source, layout)))
