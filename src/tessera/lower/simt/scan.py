"""SIMT lowering of scans: index bit by index bit, from the lowest.

A block of `2 ** b` neighbours knows its running results and its total. Two of them become one: the later one's results
take the total of the earlier one in. Where the two are in registers of one thread that is nothing but arithmetic; other
totals come by shuffles, and between warps by way of shared memory. What threads get from others is kept apart until a
thread's own registers are next, so that each of these takes it in once; under `strict` they take it in bit by bit, in
the order of `numerics.order`.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from tessera.ir.layouts import REGISTER, LinearLayout, partner
from tessera.ir.target.arithmetic import ElementwiseOp, ExchangeLanesOp, IotaOp, RelayoutOp
from tessera.ir.target.types import element_of
from tessera.ir.tile.reduce import ScanByOp, ScanOp
from tessera.ir.types import dtype_of, element_type
from tessera.lower.combiners import Values
from tessera.lower.simt.context import SimtContext, tile_shape
from tessera.lower.simt.exchange import exchanged
from tessera.lower.simt.placement import follow, infers, padded
from tessera.lower.simt.reduce import Fold, flagged, fold_of, inserted, leader, plain_layout
from tessera.lower.simt.rules import lowers
from tessera.numerics import dtypes
from tessera.numerics.functions import COMBINE, identity_of
from tessera.numerics.order import NEUTRAL, is_ordered

infers(ScanOp, ScanByOp)(follow)


FEW = 8
"""Runs of neighbours in a thread, each of which takes its own shuffles, that cost no more than shared memory."""
NEIGHBOURS = 8
"""Elements that are neighbours in a thread where a tile comes through shared memory."""


def _scanned_layout(context: SimtContext, source: SSAValue, axis: int) -> LinearLayout:
    """Return the layout to scan in: the tile's own, or one of more neighbours where threads have too few.

    So have tiles that are loaded an element at a time, as their rows are not aligned.
    """
    own = plain_layout(context, source, axis)
    along = sum(vector[axis] != 0 for vector in own.in_bases(REGISTER))
    if 1 << along <= FEW * own.contiguous_per_thread(axis):
        return own
    other = context.placements.default(tile_shape(source), axis, 16 // NEIGHBOURS, most=NEIGHBOURS).unique_registers()
    return other if other.contiguous_per_thread(axis) > own.contiguous_per_thread(axis) else own


@lowers(ScanOp)
def _scan(context: SimtContext, op: ScanOp) -> None:
    axis, fn, reverse = op.axis.data, op.fn.data, op.reverse is not None
    layout = _scanned_layout(context, op.source, axis)
    source = context.tile(op.source, layout)
    if reverse:  # padding comes first
        dtype = dtype_of(element_of(source.type))
        neutral = NEUTRAL[fn] if is_ordered(context.profile, fn, dtype.is_float) else identity_of(fn, dtype)
        source = context.fill_outside(source, tile_shape(op.source), neutral)

    def fold(left: Values, right: Values) -> Values:
        return [context.value(ElementwiseOp(COMBINE[fn], [*left, *right]))]

    (result,) = _Scan(context, [source], layout, axis, reverse, fold).run()
    context.define(op.result, context.convert(result, context.layout_of(op.result)))


@lowers(ScanByOp)
def _scan_by(context: SimtContext, op: ScanByOp) -> None:
    axis, reverse, fold = op.axis.data, op.reverse is not None, fold_of(context, op.combiner.block)
    layout = _scanned_layout(context, leader(context.placements, op), axis)
    sources = [context.tile(source, layout) for source in op.sources]
    shape = tile_shape(op.sources[0])
    inside = context.inside([s if a == axis else padded(s) for a, s in enumerate(shape)], layout) if reverse else None
    if inside is None:
        results = _Scan(context, sources, layout, axis, reverse, fold).run()
    else:
        _, *results = _Scan(context, [inside, *sources], layout, axis, reverse, flagged(context, fold)).run()
    for output, result in zip(op.outputs, results, strict=True):
        context.define(output, context.convert(result, context.layout_of(output)))


class _Scan:
    """Writes one scan of fragments that have one layout.

    Args:
        context: the lowering.
        fragments: the elements.
        layout: their layout, plain along the axis.
        axis: the dimension.
        reverse: from the end.
        fold: combines what comes first with what comes later.
    """

    def __init__(
        self, context: SimtContext, fragments: Values, layout: LinearLayout, axis: int, reverse: bool, fold: Fold
    ):
        self.context = context
        self.layout = layout
        self.axis = axis
        self.reverse = reverse
        self.fold = fold
        self.results = fragments
        self.totals = fragments
        self.of_totals = layout
        self.kept = list(range(len(layout.in_bases(REGISTER))))
        """Bits of a register's number that a total's number has, too: those whose index bits are still to come."""
        self.before: Values = []
        """What other threads' blocks come to that stand before this thread's."""
        self.has_before: SSAValue | None = None

    def run(self) -> Values:
        """Take in bit after bit and return the running results."""
        bits = (self.layout.out_sizes[self.axis] - 1).bit_length()
        for bit in range(bits):
            register, lane, _warp = partner(self.layout, self.axis, 1 << bit)
            if register:
                self._registers(bit, register.bit_length() - 1)
            else:
                self._threads(bit, lane, last=bit == bits - 1)
                if self.context.profile == "strict":
                    self._take_in()
        self._take_in()
        return self.results

    def _registers(self, bit: int, number: int) -> None:
        """Join blocks that one thread holds."""
        self._take_in()
        place = self.kept.index(number)
        columns = list(self.of_totals.columns(REGISTER))
        del self.kept[place], columns[place]
        self.of_totals = self.of_totals.with_registers(columns)
        low = [inserted(register, place) for register in range(1 << len(self.kept))]
        high = [register | 1 << place for register in low]
        first, second = (self._renamed(self.totals, self.of_totals, registers) for registers in (low, high))
        if self.reverse:
            first, second = second, first
        folded = self.fold(self._spread(first), self.results)
        self.results = self._select(self._is_later(bit, self.layout), folded, self.results)
        self.totals = self.fold(first, second)

    def _threads(self, bit: int, lane: int, *, last: bool) -> None:
        """Join blocks that neighbouring threads hold."""
        later = self._is_later(bit, self.of_totals)
        first, second = self._pairs(bit, lane, later)
        if self.has_before is None:
            self.before, self.has_before = first, later
        else:
            folded = self._select(self.has_before, self.fold(first, self.before), first)
            self.before = self._select(later, folded, self.before)
            self.has_before = self._apply("or", self.has_before, later)
        if not last:
            self.totals = self.fold(first, second)

    def _pairs(self, bit: int, lane: int, later: SSAValue) -> tuple[Values, Values]:
        """Return the totals of the earlier and of the later block of each pair."""
        if lane:
            pairs = [ExchangeLanesOp(total, lane) for total in self.totals]
            for pair in pairs:
                self.context.emit(pair)
            low: Values = [pair.lower for pair in pairs]
            high: Values = [pair.upper for pair in pairs]
            return (high, low) if self.reverse else (low, high)
        others = [exchanged(self.context, total, self.axis, 1 << bit) for total in self.totals]
        return self._select(later, others, self.totals), self._select(later, self.totals, others)

    def _take_in(self) -> None:
        """Combine what stands before a thread's elements with them."""
        if self.has_before is None:
            return
        (some,) = self._spread([self.has_before])
        self.results = self._select(some, self.fold(self._spread(self.before), self.results), self.results)
        self.before, self.has_before = [], None

    def _spread(self, totals: Values) -> Values:
        """Give each element what its block has."""
        numbers = [
            sum((register >> bit & 1) << place for place, bit in enumerate(self.kept))
            for register in range(self.layout.registers)
        ]
        return self._renamed(totals, self.layout, numbers)

    def _renamed(self, values: Values, layout: LinearLayout, registers: Sequence[int]) -> Values:
        return [self.context.value(RelayoutOp(value, layout, registers)) for value in values]

    def _is_later(self, bit: int, layout: LinearLayout) -> SSAValue:
        """Return where an element's block is the second of its pair."""
        i32 = element_type(dtypes.i32)

        def splat(value: int) -> SSAValue:
            return self.context.splat(self.context.scalars.constant(value, i32), layout)

        at = self.context.value(IotaOp(self.axis, i32, layout))
        return self._apply("eq" if self.reverse else "ne", self._apply("and", at, splat(1 << bit)), splat(0))

    def _apply(self, fn: str, *args: SSAValue) -> SSAValue:
        return self.context.value(ElementwiseOp(fn, args))

    def _select(self, condition: SSAValue, first: Values, second: Values) -> Values:
        return [self._apply("select", condition, a, b) for a, b in zip(first, second, strict=True)]
