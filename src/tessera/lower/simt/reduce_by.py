"""Reductions by a combiner of the user's own: in the registers of a thread, between lanes, between warps.

Between lanes the place of the largest element is found by two plain reductions: of the elements, and of the places of
those that are equal to the result. They take a fraction of the instructions that pairs of an element and its place do.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Block, SSAValue

from tessera.errors import CompilerFault
from tessera.ir.extremes import Extreme, extreme_of
from tessera.ir.layouts import LANE, WARP, LinearLayout, Reduction, reduction
from tessera.ir.target.arithmetic import ElementwiseOp, ExchangeLanesOp, ExtractOp, RelayoutOp
from tessera.ir.target.types import FragmentType, element_of
from tessera.ir.tile.reduce import ReduceByOp
from tessera.ir.types import dtype_of
from tessera.lower.combiners import Values
from tessera.lower.rising import in_order, rises
from tessera.lower.simt.context import SimtContext, is_tile, tile_shape
from tessera.lower.simt.placement import Placements, infers, padded, reduced_placement
from tessera.lower.simt.reduce import (
    Fold,
    combined_in_order,
    flagged,
    fold_of,
    is_plain,
    leader,
    of_all_warps,
    plain_layout,
    reduce_lanes,
)
from tessera.lower.simt.rules import lowers


@infers(ReduceByOp)
def _place_reduce_by(placements: Placements, op: ReduceByOp) -> None:
    placement = reduced_placement(placements, leader(placements, op), op.axis.data)
    for output in op.outputs:
        if is_tile(output):
            placements.place(output, placement.layout, placement.strength)


@lowers(ReduceByOp)
def _reduce_by(context: SimtContext, op: ReduceByOp) -> None:
    strict = context.profile == "strict"
    results = _in_order(context, op) if strict else _in_any_order(context, op)
    for output, result in zip(op.outputs, results, strict=True):
        if is_tile(output):
            context.define(output, context.convert(result, context.layout_of(output)) if strict else result)
        else:
            context.define(output, context.value(ExtractOp(result)))


def _inside(context: SimtContext, op: ReduceByOp, layout: LinearLayout) -> SSAValue | None:
    """Return which elements along the axis are no padding; along the others padding is combined with padding only."""
    shape = tile_shape(op.sources[0])
    return context.inside([s if a == op.axis.data else padded(s) for a, s in enumerate(shape)], layout)


def _in_order(context: SimtContext, op: ReduceByOp) -> Values:
    """Combine in the order that `strict` gives."""
    layout = plain_layout(context, leader(context.placements, op), op.axis.data)
    fragments = [context.tile(source, layout) for source in op.sources]
    fold, inside = fold_of(context, op.combiner.block), _inside(context, op, layout)
    if inside is None:
        return combined_in_order(context, fragments, layout, op.axis.data, fold)
    return combined_in_order(context, [inside, *fragments], layout, op.axis.data, flagged(context, fold))[1:]


def _in_any_order(context: SimtContext, op: ReduceByOp) -> Values:
    """Combine what each thread holds, then what different threads do."""
    layout, axis = context.layout_of(leader(context.placements, op)).unique_registers(), op.axis.data
    fragments = [context.tile(source, layout) for source in op.sources]
    plan, plain, inside = reduction(layout, axis), is_plain(layout, axis), _inside(context, op, layout)
    within, between = fold_of(context, _in_a_thread(context, op, plain)), fold_of(context, op.combiner.block)
    if (extreme := extreme_of(op)) is not None:
        shape = tile_shape(op.sources[0])
        pairs = zip(fragments, extreme.neutral, strict=True)
        fragments = [context.fill_outside(fragment, shape, fill) for fragment, fill in pairs]
        held = _in_threads(context, fragments, layout, axis, within)
        return _between_warps(context, _first_of_lanes(context, held, plan, extreme), plan, between)
    if inside is None:
        return _between_threads(context, _in_threads(context, fragments, layout, axis, within), plan, between)
    within = flagged(context, within, first_inside=plain)
    flag, *results = _in_threads(context, [inside, *fragments], layout, axis, within)
    if _each_holds_some(layout, axis, plan, tile_shape(op.sources[0])[axis]):
        return _between_threads(context, results, plan, between)
    return _between_threads(context, [flag, *results], plan, flagged(context, between))[1:]


def _in_a_thread(context: SimtContext, op: ReduceByOp, plain: bool) -> Block:
    """Return the combiner of elements that one thread holds, in their order along the axis."""
    if not plain:
        return op.combiner.block
    rising = [number for number, tile in enumerate(op.sources) if rises(context.bounds, tile, op.axis.data)]
    return in_order(op.combiner.block, rising)


def _in_threads(context: SimtContext, fragments: Values, layout: LinearLayout, axis: int, fold: Fold) -> Values:
    """Combine the elements along an axis that a thread holds, those that stand before on the left."""
    plan = reduction(layout, axis)
    places = [layout.apply(register=register)[axis] for register in range(layout.registers)]
    groups = [sorted(group, key=places.__getitem__) for group in plan.groups]
    return _fold_registers(context, fragments, plan.result, groups, fold)


def _each_holds_some(layout: LinearLayout, axis: int, plan: Reduction, size: int) -> bool:
    """Return whether each thread holds an element inside of the tile for each result."""
    reach = 0
    for dim in (LANE, WARP):
        for vector in layout.in_bases(dim):
            reach |= vector[axis]
    furthest = [layout.apply(register=register)[axis] | reach for register in range(layout.registers)]
    return all(min(furthest[register] for register in group) < size for group in plan.groups)


def _between_threads(context: SimtContext, results: Values, plan: Reduction, fold: Fold) -> Values:
    """Combine what different threads hold; every thread that holds a part gets the whole."""
    for register, lane in plan.shuffles:
        if register:
            raise CompilerFault("a reduction exchanges registers between lanes")
        pairs = [ExchangeLanesOp(result, lane) for result in results]
        for pair in pairs:
            context.emit(pair)
        results = fold([pair.lower for pair in pairs], [pair.upper for pair in pairs])
    return _between_warps(context, results, plan, fold)


def _first_of_lanes(context: SimtContext, held: Values, plan: Reduction, extreme: Extreme) -> Values:
    """Return the largest or smallest of what the lanes hold, and the first of its places."""

    def apply(fn: str, *args: SSAValue) -> SSAValue:
        return context.value(ElementwiseOp(fn, args))

    if not plan.shuffles:
        return held
    value, place = held
    found = reduce_lanes(context, value, plan, extreme.fn)
    is_it = apply("eq", value, found)
    if dtype_of(element_of(value.type)).is_float:
        is_it = apply("or", is_it, apply("isnan", value))  # what was found is NaN then
    assert isinstance(place.type, FragmentType)
    none = context.splat(context.constant(extreme.neutral[1], element_of(place.type)), place.type.linear)
    return [found, reduce_lanes(context, apply("select", is_it, place, none), plan, "min")]


def _between_warps(context: SimtContext, results: Values, plan: Reduction, fold: Fold) -> Values:
    """Combine what different warps hold."""
    if not plan.warps:
        return results
    everything = of_all_warps(context, results, plan)
    type_ = everything[0].type
    assert isinstance(type_, FragmentType)
    warps = reduction(type_.linear, 0)
    return _fold_registers(context, everything, warps.result, warps.groups, fold)


def _fold_registers(
    context: SimtContext, fragments: Values, layout: LinearLayout, groups: Sequence[Sequence[int]], fold: Fold
) -> Values:
    """Combine registers, neighbours first.

    Args:
        context: the lowering.
        fragments: what holds them.
        layout: of the result.
        groups: the registers that each register of the result combines.
        fold: combines two of them.
    """
    parts: list[Values] = [
        [context.value(RelayoutOp(fragment, layout, registers)) for fragment in fragments]
        for registers in zip(*groups, strict=True)
    ]
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=False)
        parts = [fold(left, right) for left, right in pairs] + parts[len(parts) & ~1 :]
    return parts[0]
