"""SIMT lowering of scans: index bit by index bit, from the lowest.

A block of `2 ** b` neighbours knows its running results and its total. Two of them become one: the later one's results
take the total of the earlier one in. Where the two are in registers of one thread that is nothing but arithmetic; other
totals come by shuffles, and between warps by way of shared memory: all that neighbouring bits of warps tell apart in
one round, in which each thread reads the totals of all of them. What stands before the runs of neighbours that a thread
holds is kept apart until all bits are done, so that each element takes it in once. Functions with a name start from an
element that changes nothing, and have each pair of lanes add up both totals alike. Under `strict` elements take in what
stands before them bit by bit, in the order of `numerics.order`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.ir import SSAValue

from tessera.ir.layouts import LANE, REGISTER, WARP, LinearLayout, Reduction, partner
from tessera.ir.target.arithmetic import ElementwiseOp, ExchangeLanesOp, IotaOp, RelayoutOp
from tessera.ir.target.exchange import ExchangeOp as ExchangeThreadsOp
from tessera.ir.tile.reduce import ScanByOp, ScanOp
from tessera.ir.tile.shape import SubtileOp
from tessera.ir.tile.types import element_of as tile_element
from tessera.ir.tile.types import shape_of
from tessera.ir.types import dtype_of, element_type
from tessera.lower.combiners import Values
from tessera.lower.simt.context import SimtContext, tile_shape
from tessera.lower.simt.exchange import exchanged
from tessera.lower.simt.placement import follow, infers, padded
from tessera.lower.simt.reduce import Fold, flagged, fold_of, inserted, leader, of_all_warps, plain_layout
from tessera.lower.simt.rules import lowers
from tessera.numerics import dtypes
from tessera.numerics.functions import COMBINE, identity_of
from tessera.numerics.order import NEUTRAL, is_ordered

infers(ScanOp, ScanByOp)(follow)


FEW = 8
"""Runs of neighbours in a thread, each of which takes its own shuffles, that cost no more than shared memory."""
NEIGHBOURS = 8
"""Elements that are neighbours in a thread where a tile comes through shared memory."""
TOTALS = 64
"""Most totals of warps that a thread reads in one round: more would not stay in registers."""


def _scanned_layout(context: SimtContext, source: SSAValue, axis: int) -> LinearLayout:
    """Return the layout to scan in: the tile's own, or one of more neighbours where threads have too few.

    So have tiles that are loaded an element at a time, as their rows are not aligned.
    """
    own = plain_layout(context, source, axis)
    if own.registers <= FEW * own.contiguous_per_thread(axis):
        return own
    other = context.placements.default(tile_shape(source), axis, 16 // NEIGHBOURS, most=NEIGHBOURS).unique_registers()
    return other if other.contiguous_per_thread(axis) > own.contiguous_per_thread(axis) else own


@lowers(ScanOp)
def _scan(context: SimtContext, op: ScanOp) -> None:
    axis, fn, reverse = op.axis.data, op.fn.data, op.reverse is not None
    layout = _scanned_layout(context, op.source, axis)
    dtype = dtype_of(tile_element(op.source.type))
    ordered = is_ordered(context.profile, fn, dtype.is_float)
    whole = NEUTRAL[fn] if dtype.is_float and fn in NEUTRAL else identity_of(fn, dtype)
    source = context.tile(op.source, layout)
    ends = _ends(op.result, axis, reverse)
    if reverse or ends:  # padding comes first, or counts
        source = context.fill_outside(source, tile_shape(op.source), whole)

    def fold(left: Values, right: Values) -> Values:
        return [context.value(ElementwiseOp(COMBINE[fn], [*left, *right]))]

    neutral = None if ordered else [context.constant(whole, tile_element(op.source.type))]
    scan = _Scan(context, [source], layout, axis, reverse, fold, neutral)
    (result,) = scan.run()
    context.define(op.result, context.convert(result, context.layout_of(op.result)))
    scan.define(ends, 0)


@lowers(ScanByOp)
def _scan_by(context: SimtContext, op: ScanByOp) -> None:
    axis, reverse, fold = op.axis.data, op.reverse is not None, fold_of(context, op.combiner.block)
    layout = _scanned_layout(context, leader(context.placements, op), axis)
    sources = [context.tile(source, layout) for source in op.sources]
    shape = tile_shape(op.sources[0])
    ends = [_ends(output, axis, reverse) for output in op.outputs]
    counts = reverse or any(ends)
    inside = context.inside([s if a == axis else padded(s) for a, s in enumerate(shape)], layout) if counts else None
    if inside is None:
        scan = _Scan(context, sources, layout, axis, reverse, fold)
        results = scan.run()
    else:
        scan = _Scan(context, [inside, *sources], layout, axis, reverse, flagged(context, fold))
        _, *results = scan.run()
    for output, result in zip(op.outputs, results, strict=True):
        context.define(output, context.convert(result, context.layout_of(output)))
    for place, found in enumerate(ends):
        scan.define(found, place + (inside is not None))


def _ends(result: SSAValue, axis: int, reverse: bool) -> list[SSAValue]:
    """Return the tiles of the last elements of a scan's result, which every thread knows behind it."""
    found = list[SSAValue]()
    for use in result.uses:
        op = use.operation
        if not isinstance(op, SubtileOp):
            continue
        sizes, last = shape_of(result.type), 0 if reverse else shape_of(result.type)[axis] - 1
        places = [last if a == axis else 0 for a in range(len(sizes))]
        if list(op.places) == places and prod(shape_of(op.result.type)) * sizes[axis] == prod(sizes):
            found.append(op.result)
    return found


class _Scan:
    """Writes one scan of fragments that have one layout.

    Args:
        context: the lowering.
        fragments: the elements.
        layout: their layout, plain along the axis.
        axis: the dimension.
        reverse: from the end.
        fold: combines what comes first with what comes later.
        neutral: scalars that change nothing, of a function of which it does not matter what comes first.
    """

    def __init__(
        self,
        context: SimtContext,
        fragments: Values,
        layout: LinearLayout,
        axis: int,
        reverse: bool,
        fold: Fold,
        neutral: Values | None = None,
    ):
        self.context = context
        self.layout = layout
        self.axis = axis
        self.reverse = reverse
        self.fold = fold
        self.neutral = neutral
        self.results = fragments
        self.totals = fragments
        self.of_totals = layout
        self.kept = list(range(len(layout.in_bases(REGISTER))))
        """Bits of a register's number that a total's number has, too: those whose index bits are still to come."""
        self.runs: tuple[LinearLayout, list[int]] | None = None
        """The layout of a thread's runs of neighbours, and the bits that their numbers have; none before they end."""
        self.before: Values = []
        """What stands before the runs."""
        self.has_before: SSAValue | None = None

    def run(self) -> Values:
        """Take in bit after bit and return the running results."""
        bits, bit = (self.layout.out_sizes[self.axis] - 1).bit_length(), 0
        while bit < bits:
            register, lane, _warp = partner(self.layout, self.axis, 1 << bit)
            count = 1 if register or lane else self._round(bit, bits)
            if not register and self.runs is None:
                self.runs = self.of_totals, list(self.kept)
            if register:
                self._registers(bit, register.bit_length() - 1)
            elif count > 1:
                self._warps(bit, count)
            else:
                self._threads(bit, lane)
            if self.context.profile == "strict":
                self._take_in()
            bit += count
        self._take_in()
        return self.results

    def define(self, ends: Sequence[SSAValue], place: int) -> None:
        """Say what the last elements of one of the results are: the totals, which every thread has."""
        sizes = [1 if axis == self.axis else size for axis, size in enumerate(self.layout.out_sizes)]
        bases = {
            dim: [[0 if axis == self.axis else x for axis, x in enumerate(v)] for v in self.of_totals.in_bases(dim)]
            for dim in (REGISTER, LANE, WARP)
        }
        for end in ends:
            total = self.context.relabel(self.totals[place], LinearLayout.make(bases, sizes))
            self.context.define(end, total)

    def _round(self, bit: int, bits: int) -> int:
        """Return how many bits of warps, from one on, are joined in one round."""
        if self.context.profile == "strict":
            return 1
        count, held = 1, self.of_totals.registers * len(self.totals)
        while bit + count < bits and held << count + 1 <= TOTALS:
            if any(partner(self.layout, self.axis, 1 << bit + count)[:2]):
                break
            count += 1
        return count

    def _registers(self, bit: int, number: int) -> None:
        """Join blocks that one thread holds."""
        place = self.kept.index(number)
        columns = list(self.of_totals.columns(REGISTER))
        del self.kept[place], columns[place]
        self.of_totals = self.of_totals.with_registers(columns)
        low = [inserted(register, place) for register in range(1 << len(self.kept))]
        high = [register | 1 << place for register in low]
        first, second = (self._renamed(self.totals, self.of_totals, registers) for registers in (low, high))
        if self.reverse:
            first, second = second, first
        if self.runs is None:
            every = list(range(len(self.layout.in_bases(REGISTER))))
            folded = self.fold(self._spread(first, self.kept, self.layout, every), self.results)
            self.results = self._select(self._is_later(bit, self.layout), folded, self.results)
        else:
            self._put_before(first, self._is_later(bit, self.runs[0]))
        self.totals = self.fold(first, second)

    def _threads(self, bit: int, lane: int) -> None:
        """Join blocks that neighbouring threads hold."""
        assert self.runs is not None
        later = self._is_later(bit, self.runs[0])
        if self.neutral is None:
            first, second = self._pairs(bit, lane)
        else:
            first, second = self._others(bit, lane), self.totals
        self._put_before(first, later)
        self.totals = self.fold(first, second)

    def _warps(self, bit: int, count: int) -> None:
        """Join the blocks of all warps that some bits tell apart."""
        assert self.runs is not None
        totals = self._of_warps(bit, count)
        if self.reverse:
            totals.reverse()
        sums, before = totals[0], totals[0]
        for number, total in enumerate(totals[1:], 1):
            if number > 1:
                before = self._select(self._is_from(number, bit, count, self.of_totals), sums, before)
            sums = self.fold(sums, total)
        self._put_before(before, self._is_from(1, bit, count, self.runs[0]))
        self.totals = sums

    def _of_warps(self, bit: int, count: int) -> list[Values]:
        """Return the totals of each of the warps, which every thread reads from shared memory."""
        above = bit + count

        def of_blocks(sizes: Sequence[int]) -> list[int]:
            return [size >> above if axis == self.axis else size for axis, size in enumerate(sizes)]

        bases = {dim: [of_blocks(v) for v in self.of_totals.in_bases(dim)] for dim in (REGISTER, LANE, WARP)}
        blocks = LinearLayout.make(bases, of_blocks(self.of_totals.out_sizes))
        warps = tuple(partner(self.layout, self.axis, 1 << place) for place in range(bit, above))
        everything = of_all_warps(self.context, self.totals, Reduction(blocks, (), (), warps))
        numbers = [[part + (r << count) for r in range(self.of_totals.registers)] for part in range(1 << count)]
        return [self._renamed(everything, self.of_totals, registers) for registers in numbers]

    def _is_from(self, number: int, bit: int, count: int, layout: LinearLayout) -> SSAValue:
        """Return where an element's warp is one of those from a number on, in the order of the scan."""
        mask = (1 << count) - 1 << bit
        at = self._apply("and", self._place(layout), self._number(mask, layout))
        if self.reverse:
            at = self._apply("xor", at, self._number(mask, layout))
        return self._apply("ge", at, self._number(number << bit, layout))

    def _put_before(self, first: Values, later: SSAValue) -> None:
        """Put totals of blocks before the runs that stand in the later of two blocks."""
        assert self.runs is not None
        first = self._spread(first, self.kept, *self.runs)
        if self.neutral is not None:
            folded = self.fold(first, self.before) if self.before else first
            before = self.before or [self.context.splat(value, self.runs[0]) for value in self.neutral]
            self.before = self._select(later, folded, before)
        elif self.has_before is None:
            self.before, self.has_before = first, later
        else:
            folded = self._select(self.has_before, self.fold(first, self.before), first)
            self.before = self._select(later, folded, self.before)
            self.has_before = self._apply("or", self.has_before, later)

    def _pairs(self, bit: int, lane: int) -> tuple[Values, Values]:
        """Return the totals of the earlier and of the later block of each pair."""
        if lane:
            pairs = [ExchangeLanesOp(total, lane) for total in self.totals]
            for pair in pairs:
                self.context.emit(pair)
            low: Values = [pair.lower for pair in pairs]
            high: Values = [pair.upper for pair in pairs]
            return (high, low) if self.reverse else (low, high)
        others, later = self._others(bit, lane), self._is_later(bit, self.of_totals)
        return self._select(later, others, self.totals), self._select(later, self.totals, others)

    def _others(self, bit: int, lane: int) -> Values:
        """Return the totals of the other block of each pair."""
        if lane:
            return [self.context.value(ExchangeThreadsOp(total, 0, lane)) for total in self.totals]
        return [exchanged(self.context, total, self.axis, 1 << bit) for total in self.totals]

    def _take_in(self) -> None:
        """Combine what stands before a thread's runs with their elements."""
        if not self.before:
            return
        assert self.runs is not None
        every = list(range(len(self.layout.in_bases(REGISTER))))
        _, kept = self.runs
        results = self.fold(self._spread(self.before, kept, self.layout, every), self.results)
        if self.has_before is not None:
            (some,) = self._spread([self.has_before], kept, self.layout, every)
            results = self._select(some, results, self.results)
        self.results, self.before, self.has_before = results, [], None

    def _spread(self, values: Values, kept: Sequence[int], layout: LinearLayout, bits: Sequence[int]) -> Values:
        """Give each register of a layout the value of its block.

        Args:
            values: the values.
            kept: the bits of a register's number that their numbers have.
            layout: the layout.
            bits: those that the layout's numbers have.
        """
        steps = [(bits.index(bit), place) for place, bit in enumerate(kept)]
        numbers = [sum((r >> bit & 1) << place for bit, place in steps) for r in range(layout.registers)]
        return self._renamed(values, layout, numbers)

    def _renamed(self, values: Values, layout: LinearLayout, registers: Sequence[int]) -> Values:
        return [self.context.value(RelayoutOp(value, layout, registers)) for value in values]

    def _is_later(self, bit: int, layout: LinearLayout) -> SSAValue:
        """Return where an element's block is the second of its pair."""
        own = self._apply("and", self._place(layout), self._number(1 << bit, layout))
        return self._apply("eq" if self.reverse else "ne", own, self._number(0, layout))

    def _place(self, layout: LinearLayout) -> SSAValue:
        """Return where elements stand along the axis."""
        return self.context.value(IotaOp(self.axis, element_type(dtypes.i32), layout))

    def _number(self, value: int, layout: LinearLayout) -> SSAValue:
        return self.context.splat(self.context.scalars.constant(value, element_type(dtypes.i32)), layout)

    def _apply(self, fn: str, *args: SSAValue) -> SSAValue:
        return self.context.value(ElementwiseOp(fn, args))

    def _select(self, condition: SSAValue, first: Values, second: Values) -> Values:
        return [self._apply("select", condition, a, b) for a, b in zip(first, second, strict=True)]
