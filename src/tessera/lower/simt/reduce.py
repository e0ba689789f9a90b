"""SIMT lowering of reductions: registers, then lanes, then warps.

Combiners of the user's own have no value to start from: what lies beyond a tile is told apart by a flag that is
combined with the elements.
"""

from __future__ import annotations

from collections.abc import Callable

from xdsl.ir import Attribute, Block, SSAValue

from tessera.errors import CompilerFault
from tessera.ir.layouts import LANE, REGISTER, WARP, LinearLayout, Reduction, reduction
from tessera.ir.target.arithmetic import (
    ElementwiseOp,
    ExchangeLanesOp,
    ExtractOp,
    ReduceLanesOp,
    ReduceRegistersOp,
    RelayoutOp,
)
from tessera.ir.target.memory import BarrierOp, BufferLoadOp, BufferStoreOp
from tessera.ir.target.types import BufferType, FragmentType, element_of
from tessera.ir.tile.reduce import ReduceByOp, ReduceOp, ScanByOp
from tessera.ir.types import dtype_of
from tessera.lower.combiners import Values, combine
from tessera.lower.simt.context import SimtContext, is_tile, tile_shape
from tessera.lower.simt.placement import Placements, infers, padded, reduced_placement
from tessera.lower.simt.rules import lowers
from tessera.numerics.dtypes import DType


def identity_of(fn: str, dtype: DType) -> float:
    """Return the value that a reduction ignores."""
    if fn in ("sum", "any"):
        return 0
    if fn in ("prod", "all"):
        return 1
    if dtype.is_float:
        return float("-inf") if fn == "max" else float("inf")
    low = -(1 << dtype.bits - 1) if dtype.kind == "int" else 0
    high = (1 << dtype.bits - (dtype.kind == "int")) - 1
    return low if fn == "max" else high


@infers(ReduceOp)
def _place_reduce(placements: Placements, op: ReduceOp) -> None:
    if is_tile(op.result):
        placement = reduced_placement(placements, op.source, op.axis.data)
        placements.place(op.result, placement.layout, placement.strength)


@infers(ReduceByOp)
def _place_reduce_by(placements: Placements, op: ReduceByOp) -> None:
    placement = reduced_placement(placements, leader(placements, op), op.axis.data)
    for output in op.outputs:
        if is_tile(output):
            placements.place(output, placement.layout, placement.strength)


def leader(placements: Placements, op: ReduceByOp | ScanByOp) -> SSAValue:
    """Return the operand whose layout all take: that which is placed most strongly."""
    placed = [source for source in op.sources if placements.of(source) is not None]
    return max(placed, key=lambda v: placements.found[v].strength, default=op.sources[0])


@lowers(ReduceOp)
def _reduce(context: SimtContext, op: ReduceOp) -> None:
    layout = context.layout_of(op.source).unique_registers()
    fragment = context.tile(op.source, layout)
    dtype = dtype_of(element_of(fragment.type))
    fragment = context.fill_outside(fragment, tile_shape(op.source), identity_of(op.fn.data, dtype))
    result = reduce_fragment(context, fragment, layout, op.axis.data, op.fn.data)
    if not is_tile(op.result):
        result = context.value(ExtractOp(result))
    context.define(op.result, result)


def reduce_fragment(context: SimtContext, fragment: SSAValue, layout: LinearLayout, axis: int, fn: str) -> SSAValue:
    """Combine a fragment along an axis; every thread that holds a part gets the whole result."""
    plan = reduction(layout, axis)
    element = element_of(fragment.type)
    result = context.value(ReduceRegistersOp(fragment, axis, fn, FragmentType.of(element, plan.result)))
    for register, lane in plan.shuffles:
        if register:
            raise CompilerFault("a reduction exchanges registers between lanes")
        result = context.value(ReduceLanesOp(result, lane, fn))
    return _across_warps(context, result, plan, fn) if plan.warps else result


def _across_warps(context: SimtContext, partial: SSAValue, plan: Reduction, fn: str) -> SSAValue:
    """Combine partial results of several warps: each stores its own, all read all and combine in one order."""
    (everything,) = _of_all_warps(context, [partial], plan)
    type_ = FragmentType.of(element_of(partial.type), plan.result)
    return context.value(ReduceRegistersOp(everything, 0, fn, type_))


def _of_all_warps(context: SimtContext, partials: Values, plan: Reduction) -> Values:
    """Return the partial results of all warps in every thread, along a new first axis."""
    parts = 1 << len(plan.warps)
    where = {warp: number for number, (_register, _lane, warp) in enumerate(plan.warps)}
    if any(register or lane for register, lane, _ in plan.warps):
        raise CompilerFault("a reduction exchanges registers between warps")
    layout = plan.result

    def widened(dim: str) -> list[list[int]]:
        vectors = layout.in_bases(dim)
        return [
            [1 << where[1 << bit] if dim == WARP and 1 << bit in where else 0, *vector]
            for bit, vector in enumerate(vectors)
        ]

    sizes = (parts, *layout.out_sizes)
    stored = LinearLayout.make({dim: widened(dim) for dim in (REGISTER, LANE, WARP)}, sizes)
    bits = [[1 << bit, *[0] * layout.rank] for bit in range(len(plan.warps))]
    read = LinearLayout.make(
        {
            REGISTER: [*bits, *([0, *v] for v in layout.in_bases(REGISTER))],
            LANE: [[0, *v] for v in layout.in_bases(LANE)],
            WARP: [[0, *v] for v in layout.in_bases(WARP)],
        },
        sizes,
    )
    everything: Values = []
    for partial in partials:  # one after the other: transient buffers share their bytes
        element = element_of(partial.type)
        buffer = context.transient(BufferType.of(sizes, element, "shared"))
        context.emit(BufferStoreOp(context.relabel(partial, stored), buffer))
        context.emit(BarrierOp())
        everything.append(context.value(BufferLoadOp(buffer, FragmentType.of(element, read))))
    return everything


Fold = Callable[[Values, Values], Values]
"""Combines what stands before with what stands behind."""


def fold_of(context: SimtContext, combiner: Block) -> Fold:
    """Return how a combiner of the user's own combines fragments."""

    def splat(value: SSAValue, like: Attribute) -> SSAValue:
        assert isinstance(like, FragmentType)
        return context.splat(value, like.linear)

    return lambda left, right: combine(
        combiner,
        [*left, *right],
        context.scalar,
        context.value,
        lambda op: context.scalars.constant(op.python_value, op.result.type),
        splat,
    )


def flagged(context: SimtContext, fold: Fold) -> Fold:
    """Return a fold of values that are led by a flag: those without it are left out."""

    def apply(fn: str, *args: SSAValue) -> SSAValue:
        return context.value(ElementwiseOp(fn, args))

    def folded(left: Values, right: Values) -> Values:
        (before, *first), (behind, *second) = left, right
        results = [apply("or", before, behind)]
        for both, alone, other in zip(fold(first, second), first, second, strict=True):
            results.append(apply("select", behind, apply("select", before, both, other), alone))
        return results

    return folded


@lowers(ReduceByOp)
def _reduce_by(context: SimtContext, op: ReduceByOp) -> None:
    layout = context.layout_of(leader(context.placements, op)).unique_registers()
    fragments = [context.tile(source, layout) for source in op.sources]
    fold, axis, shape = fold_of(context, op.combiner.block), op.axis.data, tile_shape(op.sources[0])
    # Padding along the other axes is combined with padding only.
    inside = context.inside([s if a == axis else padded(s) for a, s in enumerate(shape)], layout)
    if inside is None:
        results = reduce_by(context, fragments, layout, axis, fold)
    else:
        _, *results = reduce_by(context, [inside, *fragments], layout, axis, flagged(context, fold))
    for output, result in zip(op.outputs, results, strict=True):
        context.define(output, result if is_tile(output) else context.value(ExtractOp(result)))


def reduce_by(context: SimtContext, fragments: Values, layout: LinearLayout, axis: int, fold: Fold) -> Values:
    """Combine fragments of one layout along an axis by a fold; every thread that holds a part gets the whole."""
    plan = reduction(layout, axis)
    results = _fold_registers(context, fragments, plan, fold)
    for register, lane in plan.shuffles:
        if register:
            raise CompilerFault("a reduction exchanges registers between lanes")
        pairs = [ExchangeLanesOp(result, lane) for result in results]
        for pair in pairs:
            context.emit(pair)
        results = fold([pair.lower for pair in pairs], [pair.upper for pair in pairs])
    if not plan.warps:
        return results
    everything = _of_all_warps(context, results, plan)
    type_ = everything[0].type
    assert isinstance(type_, FragmentType)
    return _fold_registers(context, everything, reduction(type_.linear, 0), fold)


def _fold_registers(context: SimtContext, fragments: Values, plan: Reduction, fold: Fold) -> Values:
    """Combine the registers that differ only along the axis, neighbours first."""
    parts: list[Values] = [
        [context.value(RelayoutOp(fragment, plan.result, registers)) for fragment in fragments]
        for registers in zip(*plan.groups, strict=True)
    ]
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=False)
        parts = [fold(left, right) for left, right in pairs] + parts[len(parts) & ~1 :]
    return parts[0]
