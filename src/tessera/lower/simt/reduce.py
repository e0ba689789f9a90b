"""SIMT lowering of reductions: registers, then lanes, then warps.

Combiners of the user's own have no value to start from: what lies beyond a tile is told apart by a flag that is
combined with the elements.

Under `strict`, float sums and products and combiners take the order of `numerics.order`: index bits from the highest
down, whichever of registers, lanes and warps a bit tells apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.ir import Attribute, Block, SSAValue

from tessera.data import dataclass
from tessera.errors import CompilerFault
from tessera.ir.layouts import LANE, REGISTER, WARP, LinearLayout, Reduction, partner, reduction
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
from tessera.ir.tile.types import element_of as tile_element
from tessera.ir.types import dtype_of
from tessera.lower.combiners import Values, combine
from tessera.lower.simt.context import SimtContext, is_tile, tile_shape
from tessera.lower.simt.placement import Placements, infers, reduced_placement
from tessera.lower.simt.rules import lowers
from tessera.numerics.functions import COMBINE, identity_of
from tessera.numerics.order import NEUTRAL, is_ordered


@infers(ReduceOp)
def _place_reduce(placements: Placements, op: ReduceOp) -> None:
    if is_tile(op.result):
        placement = reduced_placement(placements, op.source, op.axis.data)
        placements.place(op.result, placement.layout, placement.strength)


def leader(placements: Placements, op: ReduceByOp | ScanByOp) -> SSAValue:
    """Return the operand whose layout all take: that which is placed most strongly."""
    placed = [source for source in op.sources if placements.of(source) is not None]
    return max(placed, key=lambda v: placements.found[v].strength, default=op.sources[0])


@lowers(ReduceOp)
def _reduce(context: SimtContext, op: ReduceOp) -> None:
    dtype = dtype_of(tile_element(op.source.type))
    if is_ordered(context.profile, op.fn.data, dtype.is_float):
        _reduce_in_order(context, op)
        return
    layout = context.layout_of(op.source).unique_registers()
    fragment = context.tile(op.source, layout)
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
    result = reduce_lanes(context, result, plan, fn)
    return _across_warps(context, result, plan, fn) if plan.warps else result


def reduce_lanes(context: SimtContext, held: SSAValue, plan: Reduction, fn: str) -> SSAValue:
    """Combine what the lanes of a warp hold; every lane that holds a part gets the whole."""
    for register, lane in plan.shuffles:
        if register:
            raise CompilerFault("a reduction exchanges registers between lanes")
        held = context.value(ReduceLanesOp(held, lane, fn))
    return held


def _across_warps(context: SimtContext, partial: SSAValue, plan: Reduction, fn: str) -> SSAValue:
    """Combine partial results of several warps: each stores its own, all read all and combine in one order."""
    (everything,) = of_all_warps(context, [partial], plan)
    type_ = FragmentType.of(element_of(partial.type), plan.result)
    return context.value(ReduceRegistersOp(everything, 0, fn, type_))


def of_all_warps(context: SimtContext, partials: Values, plan: Reduction) -> Values:
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


def flagged(context: SimtContext, fold: Fold, first_inside: bool = False) -> Fold:
    """Return a fold of values that are led by a flag: those without it are left out.

    Args:
        context: the lowering.
        fold: combines what has the flag.
        first_inside: whether what stands before has the flag wherever what stands behind has it.
    """

    def apply(fn: str, *args: SSAValue) -> SSAValue:
        return context.value(ElementwiseOp(fn, args))

    def folded(left: Values, right: Values) -> Values:
        (before, *first), (behind, *second) = left, right
        results = [before if first_inside else apply("or", before, behind)]
        for both, alone, other in zip(fold(first, second), first, second, strict=True):
            two = both if first_inside else apply("select", before, both, other)
            results.append(apply("select", behind, two, alone))
        return results

    return folded


def plain_layout(context: SimtContext, source: SSAValue, axis: int) -> LinearLayout:
    """Return the tile's own layout if each index bit is one bit of a register's or thread's number, else one such."""
    own = context.layout_of(source).unique_registers()
    return own if is_plain(own, axis) else context.placements.default(tile_shape(source)).unique_registers()


def is_plain(layout: LinearLayout, axis: int) -> bool:
    """Return whether each bit of an index along an axis is one bit of a register's or thread's number."""
    columns = [vector for dim in (REGISTER, LANE, WARP) for vector in layout.in_bases(dim)]
    for bit in range((layout.out_sizes[axis] - 1).bit_length()):
        deciding = [vector for vector in columns if vector[axis] >> bit & 1]
        alone = [1 << bit if a == axis else 0 for a in range(layout.rank)]
        if [list(vector) for vector in deciding] != [alone]:
            return False
    return True


def inserted(number: int, place: int) -> int:
    """Return a number with a zero bit put in at a place."""
    low = number & (1 << place) - 1
    return (number ^ low) << 1 | low


def _reduce_in_order(context: SimtContext, op: ReduceOp) -> None:
    """Reduce floats in the order that `strict` gives."""
    fn, axis = op.fn.data, op.axis.data
    layout = plain_layout(context, op.source, axis)
    fragment = context.fill_outside(context.tile(op.source, layout), tile_shape(op.source), NEUTRAL[fn])

    def fold(left: Values, right: Values) -> Values:
        return [context.value(ElementwiseOp(COMBINE[fn], [*left, *right]))]

    def lanes(values: Values, lane: int) -> Values:
        return [context.value(ReduceLanesOp(value, lane, fn)) for value in values]

    (result,) = _InOrder(context, axis, fold, lanes).run([fragment], layout)
    if is_tile(op.result):
        context.define(op.result, context.convert(result, context.layout_of(op.result)))
    else:
        context.define(op.result, context.value(ExtractOp(result)))


def combined_in_order(context: SimtContext, fragments: Values, layout: LinearLayout, axis: int, fold: Fold) -> Values:
    """Combine fragments of one plain layout by a fold, in the order that `strict` gives."""

    def lanes(values: Values, lane: int) -> Values:
        pairs = [ExchangeLanesOp(value, lane) for value in values]
        for pair in pairs:
            context.emit(pair)
        return fold([pair.lower for pair in pairs], [pair.upper for pair in pairs])

    return _InOrder(context, axis, fold, lanes).run(fragments, layout)


@dataclass(frozen=True)
class _InOrder:
    """Combines the two halves of an axis until one element is left.

    Args:
        context: the lowering.
        axis: the dimension.
        fold: combines two fragments.
        lanes: combines the elements of a lane with those of lane ^ mask.
    """

    context: SimtContext
    axis: int
    fold: Fold
    lanes: Callable[[Values, int], Values]

    def run(self, values: Values, layout: LinearLayout) -> Values:
        """Return the combination of all elements along the axis, which every thread gets that holds one of them."""
        while (size := layout.out_sizes[self.axis]) > 1:
            register, lane, _warp = partner(layout, self.axis, size // 2)
            if register:
                values, layout = self._registers(values, layout, register.bit_length() - 1)
            elif lane:
                smaller = self._halved(layout, size // 2)
                values = [self.context.relabel(value, smaller) for value in self.lanes(values, lane)]
                layout = smaller
            else:
                values, layout = self._warps(values, layout)
        return [self.context.relabel(value, layout.drop_axis(self.axis)) for value in values]

    def _halved(self, layout: LinearLayout, size: int, without: int | None = None) -> LinearLayout:
        """Return a layout of the axis' first `size` elements, which others hold too; a register bit is left out."""
        bases = {
            dim: [
                [x & size - 1 if a == self.axis else x for a, x in enumerate(vector)]
                for bit, vector in enumerate(layout.in_bases(dim))
                if dim != REGISTER or bit != without
            ]
            for dim in (REGISTER, LANE, WARP)
        }
        return LinearLayout.make(bases, [size if a == self.axis else s for a, s in enumerate(layout.out_sizes)])

    def _registers(self, values: Values, layout: LinearLayout, bit: int) -> tuple[Values, LinearLayout]:
        smaller = self._halved(layout, layout.out_sizes[self.axis] // 2, bit)
        low = [inserted(register, bit) for register in range(smaller.registers)]
        return self.fold(
            self._of(values, smaller, low), self._of(values, smaller, [r | 1 << bit for r in low])
        ), smaller

    def _of(self, values: Values, layout: LinearLayout, registers: Sequence[int]) -> Values:
        return [self.context.value(RelayoutOp(value, layout, registers)) for value in values]

    def _warps(self, values: Values, layout: LinearLayout) -> tuple[Values, LinearLayout]:
        """Combine what all warps hold that the next bits tell apart, by one round through shared memory."""
        size, warps = layout.out_sizes[self.axis], list[tuple[int, int, int]]()
        while size > 1 and not any((step := partner(layout, self.axis, size // 2))[:2]):
            warps.append(step)
            size //= 2
        smaller, count = self._halved(layout, size), 1 << len(warps)
        everything = of_all_warps(self.context, values, Reduction(smaller, (), (), tuple(warps)))
        parts = [
            self._of(everything, smaller, [part + register * count for register in range(smaller.registers)])
            for part in range(count)
        ]
        while len(parts) > 1:
            parts = [self.fold(*pair) for pair in zip(parts[::2], parts[1::2], strict=True)]
        return parts[0], smaller
