"""Rules of reductions.

Order of a reduction, which depends on the tile's shape and the target's vector width only: along the lane
axis, chunk c goes to accumulator c mod `ACCUMULATORS` and its lanes stay apart; accumulators are then
combined as a balanced tree, and last the lanes, halves at a time: of as many rows as there are lanes at once, where
there are so many. Along another axis, position p goes to accumulator p mod `ACCUMULATORS`. Of floats, where an
accumulator has more than `ROUNDS` terms, it adds up sums of as many, and of more than their square sums of those. The
order never depends on the number of threads. Combiners of the user's own take the same order; they have no value to
start from, so accumulators start from the first chunks, and what lies past the end of a row is left out.

Under `strict`, float sums and products and combiners take the order of `numerics.order`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from xdsl.ir import SSAValue

from tessera.ir.target.arithmetic import CastOp, TransposeChunksOp, constant_value
from tessera.ir.tile.reduce import ReduceByOp, ReduceOp
from tessera.ir.types import dtype_of
from tessera.lower.combiners import Values
from tessera.lower.vector.context import VectorContext
from tessera.lower.vector.folds import Combiner, Fold, Function
from tessera.lower.vector.indexed import by_rows
from tessera.lower.vector.needs import joined
from tessera.lower.vector.nest import roomy
from tessera.lower.vector.next_rows import BUSY_COST, ask_for, take_rows
from tessera.lower.vector.nodes import Convert, Coord, Coords, Load, Node, Stored, bool_of, costs_more, walk
from tessera.lower.vector.ordered import Tree, passes_leave
from tessera.lower.vector.rules import lowers
from tessera.lower.vector.site import End, Site, chunk_width, end_of, lane_axis, versions
from tessera.numerics.functions import COMBINE, identity_of
from tessera.numerics.order import NEUTRAL, is_ordered

ACCUMULATORS = 4
ROUNDS = 32
"""Floats that an accumulator adds up one after the other; the error of a sum grows with their number."""
BRANCHES = 8
"""Chunks that are combined at a time where the order is given."""


@lowers(ReduceOp)
def lower_reduce(context: VectorContext, op: ReduceOp) -> None:
    """Reduce along one axis at once; the result is a scalar or stored."""
    fn = op.fn.data
    source = context.node(op.source)
    element = source.element
    if fn in ("any", "all"):
        source = bool_of(source)
    ordered = is_ordered(context.profile, fn, dtype_of(source.element).is_float)
    neutral = NEUTRAL[fn] if ordered else identity_of(fn, dtype_of(source.element))
    start = context.writer.scalars.constant(neutral, source.element)
    reduction = _Reduction(context, [source], op.axis.data, Function(COMBINE[fn], start), ordered, op.results)
    if len(source.shape) == 1:
        (result,) = reduction.run_to_scalars()
        if source.element != element:
            result = context.writer.value(CastOp(result, element))
        context.define_scalar(op.result, result)
        return
    stored: Node = reduction.run()[0]
    if source.element != element:
        stored = Convert(stored.shape, element, stored)
    context.define(op.result, stored)


@lowers(ReduceByOp)
def lower_reduce_by(context: VectorContext, op: ReduceByOp) -> None:
    """Reduce several tiles together, as one is."""
    sources = [context.node(source) for source in op.sources]
    fold, ordered = Combiner(context, op.combiner.block), context.profile == "strict"
    reduction = _Reduction(context, sources, op.axis.data, fold, ordered, op.results)
    if len(sources[0].shape) == 1:
        for output, scalar in zip(op.outputs, reduction.run_to_scalars(), strict=True):
            context.define_scalar(output, scalar)
        return
    for output, stored in zip(op.outputs, reduction.run(), strict=True):
        context.define(output, stored)


class _Reduction:
    """Writes the loops of one reduction, of tiles of one shape."""

    def __init__(
        self,
        context: VectorContext,
        sources: Sequence[Node],
        axis: int,
        fold: Fold,
        ordered: bool,
        results: Sequence[SSAValue],
    ):
        self.context = context
        self.results = results
        self.sources = sources
        self.shape = sources[0].shape
        self.axis = axis
        self.fold = fold
        self.lane = lane_axis(self.shape)
        self.width = chunk_width(self.shape[self.lane], context.lanes)
        if self.axis != self.lane and not ordered:
            self.width = self._wide()
        if fold.start is None and self.axis == self.lane and self.width > self.shape[self.lane]:
            self.width //= 2  # a whole chunk to start from
        busy = any(costs_more(source, BUSY_COST - 1) for source in sources)
        self.rows = take_rows(context, self.shape) if busy else []
        self.tree = self._tree(BRANCHES // 2 if busy else BRANCHES) if ordered else None

    def _wide(self) -> int:
        """Return the width of chunks of several vectors, which read a row further before they go on to the next one.

        Their accumulators fill half of the registers.
        """
        parts = {node for source in self.sources for node, _ in walk(source)}
        wide = self.width * (4 if roomy(self.context, parts) else 2)
        fits = self.width == self.context.lanes and self.shape[self.lane] % wide == 0
        return wide if fits and len(self.sources) == 1 else self.width

    def _tree(self, branches: int) -> Tree:
        """Return how chunks are combined where the order is given."""
        size = self.shape[self.axis]
        left = passes_leave(-(-size // self.width) if self.axis == self.lane else size, branches)
        partial = [self.context.new_buffer((left, self.width), source.element) for source in self.sources if left]
        return Tree(self.fold, self.fold.start, branches, partial)

    def run_to_scalars(self) -> Values:
        """Reduce one-dimensional tiles."""
        return versions(self.context, self.width, self.sources, lambda site: self._along_lanes(site, ()))

    def run(self) -> list[Stored]:
        """Reduce tiles of more dimensions to buffers."""
        shape = tuple(size for axis, size in enumerate(self.shape) if axis != self.axis)
        targets = [self.context.new_buffer(shape, source.element) for source in self.sources]

        def nest(site: Site) -> Sequence[SSAValue]:
            ends = self._ends(site)
            if self._in_squares:
                self._squares(site, targets, ends.get(0))
            else:
                self._outer(site, 0, (), targets, ends)
            return []

        versions(self.context, self.width, self.sources, nest)
        return targets

    def _ends(self, site: Site) -> dict[int, End]:
        """Return where the axes end that are needed in part only, besides that of chunks and the reduced one."""
        together = self.context.needed(site.kept, self.shape)
        for need in (self.context.needs_of(result) for result in self.results):
            together = list(map(joined, together, (*need[: self.axis], True, *need[self.axis :])))
        inner = (self.axis, self.lane)
        return self.context.ends([True if axis in inner else need for axis, need in enumerate(together)])

    @property
    def _in_squares(self) -> bool:
        """Whether rows of a matrix can be reduced by squares of whole chunks."""
        shape, lanes = self.shape, self.context.lanes
        whole = len(shape) == 2 and shape[0] % lanes == 0 and self.axis == self.lane == 1
        words = all(dtype_of(source.element).bits == 32 for source in self.sources)
        return whole and 1 < lanes == self.width and words

    def _squares(self, site: Site, targets: Sequence[Stored], end: End | None) -> None:
        """Reduce each row to a chunk, and then the lanes of many chunks at once: alone, each would wait for itself."""
        count = self.width
        squares = [self.context.new_buffer((count, count), source.element) for source in self.sources]

        def rows(first: SSAValue) -> None:
            scalars = site.writer.scalars

            def row(number: SSAValue | int) -> None:
                outer = (Coord(scalars.add(first, number)), Coord(0))
                for square, chunk in zip(squares, self._chunks_of(site, outer), strict=True):
                    site.store(square, (Coord(number), Coord(0, lanes=True)), chunk)

            site.each(count, row)
            columns = [self._turned(site, square) for square in squares]
            values: list[Values] = [list(column) for column in zip(*columns, strict=True)]
            while len(values) > 1:
                half = len(values) // 2
                values = [self.fold(site, *pair) for pair in zip(values[:half], values[half:], strict=True)]
            for target, value in zip(targets, values[0], strict=True):
                site.store(target, (Coord(first, lanes=True),), value)

        number = self.shape[0] // count if end is None else site.writer.scalars.ceildiv(end.count, count)
        site.each(number, lambda i: rows(site.writer.scalars.mul(site.index(i), count)))

    def _turned(self, site: Site, square: Stored) -> Sequence[SSAValue]:
        chunks = [square.emit(site, (Coord(i), Coord(0, lanes=True))) for i in range(self.width)]
        turned = TransposeChunksOp(chunks, chunks[0].type)
        site.writer.insert(turned)
        return list(turned.columns)

    def _outer(self, site: Site, axis: int, outer: Coords, targets: Sequence[Stored], ends: Mapping[int, End]) -> None:
        """Loop over the axes that stay, as far as `ends` says, then reduce."""

        def inner(at: Coord) -> None:
            self._outer(site, axis + 1, (*outer, at), targets, ends)

        if axis == len(self.shape):
            kept = tuple(c for i, c in enumerate(outer) if i != self.axis)
            values = self._along_lanes(site, outer) if self.axis == self.lane else self._across(site, outer)
            for target, value in zip(targets, values, strict=True):
                site.store(target, kept, value)
            return
        if axis == self.axis:
            inner(Coord(0))
        elif axis == self.lane:
            site.chunks(self.shape[axis], inner)
        elif axis in ends:
            site.each_before(ends[axis], lambda at: inner(Coord(at)))
        else:
            site.each(self.shape[axis], lambda at: inner(Coord(at)))

    def _at(self, outer: Coords, coord: Coord) -> Coords:
        if not outer:
            return (coord,)
        return tuple(coord if axis == self.axis else c for axis, c in enumerate(outer))

    def _chunks(self, site: Site, coords: Coords) -> Values:
        for row in self.rows:
            ask_for(site, row, coords)
        return [site.chunk(source, coords) for source in self.sources]

    def _hoist(self, site: Site, outer: Coords, inner: Coord) -> None:
        for source in self.sources:
            site.hoist(source, self._at(outer, inner), inner)

    def _along_lanes(self, site: Site, outer: Coords) -> Values:
        """Reduce the lane axis to scalars."""
        return self.fold.lanes(site, self._chunks_of(site, outer))

    def _chunks_of(self, site: Site, outer: Coords) -> Values:
        """Reduce the lane axis to one chunk of each tile."""
        size, width = self.shape[self.axis], self.width
        inner = Coord(-1, lanes=width > 1)
        self._hoist(site, outer, inner)

        def chunks_at(at: SSAValue | int) -> Values:
            return self._chunks(site, self._at(outer, Coord(at, lanes=width > 1)))

        def chunks() -> Sequence[SSAValue]:
            full, rest = divmod(size, width)
            if self.tree is not None:
                place = site.writer.scalars.mul
                return self.tree.combine(site, full, lambda n: chunks_at(place(site.index(n), width)), width > 1, rest)
            partial = self._accumulate(site, full, width, chunks_at, width)
            if not rest:
                return self._combine(site, partial)
            site.tail = rest
            total = site.scoped(lambda: self._with_tail(site, partial, chunks_at(full * width)))
            site.tail = None
            return total

        return by_rows(site, size, self.sources, self._at(outer, inner), chunks)

    def _with_tail(self, site: Site, partial: list[Values], tail: Values) -> Values:
        """Combine accumulators with the last chunk of a row, some of whose lanes lie past the row's end."""
        valid = site.valid()
        assert valid is not None
        if self.fold.start is not None:
            (value,) = tail
            return self._combine(site, [*partial, [site.apply("select", [valid, value, self.fold.start])]])
        whole = self._combine(site, partial)
        both = zip(self.fold(site, whole, tail), whole, strict=True)
        return [site.apply("select", [valid, combined, alone]) for combined, alone in both]

    def _across(self, site: Site, outer: Coords) -> Values:
        """Reduce an axis that is not the lane axis: chunks are combined whole."""
        self._hoist(site, outer, Coord(-1))
        width = self.width if any(c.lanes for c in outer) else 1

        end = self._end(site)

        def chunks_at(at: SSAValue | int) -> Values:
            if end is not None:
                site.lie_before([site.index(at)], end)
            return self._chunks(site, self._at(outer, Coord(at)))

        if self.tree is not None:
            return self.tree.combine(site, self.shape[self.axis], chunks_at, width > 1)
        if end is not None:
            return self._combine(site, self._before(site, end, chunks_at, width))
        return self._combine(site, self._accumulate(site, self.shape[self.axis], 1, chunks_at, width))

    def _end(self, site: Site) -> End | None:
        """Return where the axis ends in the tensor that is reduced, where elements past the end change nothing."""
        source, axis, size = self.sources[0], self.axis, self.shape[self.axis]
        while isinstance(source, Convert) and source.stored is None:
            source = source.source
        if site.interior or site.kept or self.tree is not None or size <= ACCUMULATORS or len(self.sources) > 1:
            return None
        if not isinstance(source, Load) or source.stored is not None or source.mask is not None:
            return None
        fill = 0 if source.fill is None else constant_value(source.fill)
        neutral = None if self.fold.start is None else constant_value(self.fold.start)
        box, dimension = source.box, source.box.kept[axis]
        if fill is None or fill != neutral or dimension not in box.unsafe or dimension not in box.forward:
            return None
        return end_of(site.writer.scalars, box.offsets[dimension], box.bounds[dimension], size)

    def _before(self, site: Site, end: End, at: Callable[[SSAValue | int], Values], width: int) -> list[Values]:
        """Combine the chunks before an end as `_accumulate` combines all."""
        scalars, start = site.writer.scalars, self.fold.start
        assert start is not None
        rest = scalars.binary("mod", end.count, ACCUMULATORS)
        whole = scalars.binary("sub", end.count, rest)
        span = self._span(self.shape[self.axis] // ACCUMULATORS) * ACCUMULATORS
        neutral = [site.writer.splat(start, width)] * ACCUMULATORS
        iteration = self._iteration(site, 1, at)
        totals = _groups(self._rounds(site, 0, whole, (span, ACCUMULATORS), neutral, iteration), 1)

        def joined_with(place: SSAValue, total: Values) -> Values:
            return site.scoped(lambda: self.fold(site, total, at(place)))

        for k in range(ACCUMULATORS - 1):
            place, total = scalars.add(whole, k), totals[k]
            there = scalars.binary("lt", place, end.count)
            totals[k] = site.writer.branch(
                there, lambda place=place, total=total: joined_with(place, total), lambda total=total: total
            )
        return totals

    def _accumulate(
        self, site: Site, count: int, step: int, at: Callable[[SSAValue | int], Values], width: int
    ) -> list[Values]:
        """Combine `count` chunks of each tile, `step` apart, into a few accumulators."""
        number, tiles = min(ACCUMULATORS, count), len(self.sources)
        if number == 0:
            return []
        rounds, rest = divmod(count, number)

        iteration = self._iteration(site, step, at)
        start, first = self.fold.start, 0
        if start is not None and rounds > 1:
            neutral = site.writer.splat(start, width)
            totals = [[neutral] for _ in range(number)]
        else:
            totals, first = [at(k * step) for k in range(number)], 1
        if rounds > 1:
            carried = [value for total in totals for value in total]
            stride = number * step
            span = self._span(rounds) * stride
            totals = _groups(
                self._rounds(site, first * stride, rounds * stride, (span, stride), carried, iteration), tiles
            )
        for k in range(rest):
            totals[k] = self.fold(site, totals[k], at((rounds * number + k) * step))
        return totals

    def _iteration(
        self, site: Site, step: int, at: Callable[[SSAValue | int], Values]
    ) -> Callable[[SSAValue, Sequence[SSAValue]], Sequence[SSAValue]]:
        """Return what writes a round: accumulators take chunks `step` apart in turn."""

        def iteration(base: SSAValue, carried: Sequence[SSAValue]) -> Sequence[SSAValue]:
            scalars, each = site.writer.scalars, _groups(carried, len(self.sources))
            return site.scoped(
                lambda: [v for k, acc in enumerate(each) for v in self.fold(site, acc, at(scalars.add(base, k * step)))]
            )

        return iteration

    def _span(self, rounds: int) -> int:
        """Return how many rounds the outermost loop takes at a time: sums of floats are sums of shorter ones."""
        is_sum = isinstance(self.fold, Function) and self.fold.fn == "add"
        span = 1
        while is_sum and dtype_of(self.sources[0].element).is_float and rounds > span * ROUNDS:
            span *= ROUNDS
        return span

    def _rounds(
        self,
        site: Site,
        first: SSAValue | int,
        end: SSAValue | int,
        steps: tuple[int, int],
        carried: Sequence[SSAValue],
        iteration: Callable[[SSAValue, Sequence[SSAValue]], Sequence[SSAValue]],
    ) -> list[SSAValue]:
        """Carry accumulators from `first` to `end`, by loops in loops whose outer and inner steps are given."""
        span, stride = steps
        if span == stride:
            return site.writer.loop(first, end, stride, carried, iteration)
        tiles = len(self.sources)

        def part(base: SSAValue, totals: Sequence[SSAValue]) -> Sequence[SSAValue]:
            scalars = site.writer.scalars
            last = scalars.binary("minimum", scalars.add(base, span), end)
            found = self._rounds(site, base, last, (span // ROUNDS, stride), carried, iteration)
            both = zip(_groups(totals, tiles), _groups(found, tiles), strict=True)
            return [value for total, one in both for value in self.fold(site, total, one)]

        return site.writer.loop(first, end, span, carried, part)

    def _combine(self, site: Site, values: list[Values]) -> Values:
        while len(values) > 1:
            pairs = [values[i : i + 2] for i in range(0, len(values), 2)]
            values = [self.fold(site, *pair) if len(pair) == 2 else pair[0] for pair in pairs]
        return values[0]


def _groups(values: Sequence[SSAValue], size: int) -> list[Values]:
    return [list(values[i : i + size]) for i in range(0, len(values), size)]
