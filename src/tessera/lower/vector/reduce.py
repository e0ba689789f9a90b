"""Rules of reductions and scans.

Order of a reduction, which depends on the tile's shape and the target's vector width only: along the lane
axis, chunk c goes to accumulator c mod `ACCUMULATORS` and its lanes stay apart; accumulators are then
combined as a balanced tree, and last the lanes, halves at a time: of as many rows as there are lanes at once, where
there are so many. Along another axis, position p goes to accumulator p mod `ACCUMULATORS`. Of floats, where an
accumulator has more than `ROUNDS` terms, it adds up sums of as many, and of more than their square sums of those. The
order never depends on the number of threads. Combiners of the user's own take the same order; they have no value to
start from, so accumulators start from the first chunks, and what lies past the end of a row is left out.

Under `strict`, float sums and products and combiners take the order of `numerics.order`, scans too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.ir import Attribute, Block, SSAValue

from tessera.data import dataclass
from tessera.ir.target.arithmetic import CastOp, HalvesOp, IotaOp, ReduceRegistersOp, RelayoutOp, TransposeChunksOp
from tessera.ir.target.types import element_of, fragment_of
from tessera.ir.tile.reduce import ReduceByOp, ReduceOp, ScanByOp, ScanOp
from tessera.ir.types import dtype_of, element_type
from tessera.lower.combiners import Values, combine
from tessera.lower.vector.context import VectorContext
from tessera.lower.vector.indexed import by_rows
from tessera.lower.vector.next_rows import BUSY_COST, ask_for, take_rows
from tessera.lower.vector.nodes import Convert, Coord, Coords, Node, Stored, bool_of, costs_more
from tessera.lower.vector.ordered import Tree, passes_leave
from tessera.lower.vector.rules import lowers
from tessera.lower.vector.site import Site, chunk_width, lane_axis, versions
from tessera.lower.vector.writer import chunk_layout, chunk_type
from tessera.numerics import dtypes
from tessera.numerics.functions import COMBINE, identity_of
from tessera.numerics.order import NEUTRAL, is_ordered

ACCUMULATORS = 4
ROUNDS = 32
"""Floats that an accumulator adds up one after the other; the error of a sum grows with their number."""
BRANCHES = 8
"""Chunks that are combined at a time where the order is given."""


@dataclass(frozen=True)
class _Function:
    """Combines by a function of the language, which has a neutral element to start from."""

    fn: str
    start: SSAValue | None

    def __call__(self, site: Site, left: Values, right: Values) -> Values:
        return [site.apply(self.fn, [*left, *right])]

    def lanes(self, site: Site, totals: Values) -> Values:
        """Combine the lanes of a chunk to a scalar."""
        (total,) = totals
        type_ = fragment_of(total.type)
        return totals if type_ is None else [site.writer.value(ReduceRegistersOp(total, 0, self.fn, type_.element))]


@dataclass(frozen=True)
class _Combiner:
    """Combines by a combiner of the user's own."""

    context: VectorContext
    block: Block
    start: SSAValue | None = None

    def __call__(self, site: Site, left: Values, right: Values) -> Values:
        writer = site.writer

        def splat(value: SSAValue, like: Attribute) -> SSAValue:
            chunk = fragment_of(like)
            assert chunk is not None
            return writer.splat(value, chunk.shape[0])

        return combine(
            self.block,
            [*left, *right],
            self.context.scalar,
            writer.value,
            lambda op: writer.scalars.constant(op.python_value, op.result.type),
            splat,
        )

    def lanes(self, site: Site, totals: Values) -> Values:
        """Combine the lanes of chunks to scalars, the first half with the second until one is left."""
        while (type_ := fragment_of(totals[0].type)) is not None:
            half = type_.shape[0] // 2
            halves = [HalvesOp(total, chunk_type(element_of(total.type), half)) for total in totals]
            for op in halves:
                site.writer.insert(op)
            totals = self(site, [op.first for op in halves], [op.second for op in halves])
        return totals


_Fold = _Function | _Combiner


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
    reduction = _Reduction(context, [source], op.axis.data, _Function(COMBINE[fn], start), ordered)
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
    fold, ordered = _Combiner(context, op.combiner.block), context.profile == "strict"
    reduction = _Reduction(context, sources, op.axis.data, fold, ordered)
    if len(sources[0].shape) == 1:
        for output, scalar in zip(op.outputs, reduction.run_to_scalars(), strict=True):
            context.define_scalar(output, scalar)
        return
    for output, stored in zip(op.outputs, reduction.run(), strict=True):
        context.define(output, stored)


class _Reduction:
    """Writes the loops of one reduction, of tiles of one shape."""

    def __init__(self, context: VectorContext, sources: Sequence[Node], axis: int, fold: _Fold, ordered: bool):
        self.context = context
        self.sources = sources
        self.shape = sources[0].shape
        self.axis = axis
        self.fold = fold
        self.lane = lane_axis(self.shape)
        self.width = chunk_width(self.shape[self.lane], context.lanes)
        if fold.start is None and self.axis == self.lane and self.width > self.shape[self.lane]:
            self.width //= 2  # a whole chunk to start from
        busy = any(costs_more(source, BUSY_COST - 1) for source in sources)
        self.rows = take_rows(context, self.shape) if busy else []
        self.tree = self._tree(BRANCHES // 2 if busy else BRANCHES) if ordered else None

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
            if self._in_squares:
                self._squares(site, targets)
            else:
                self._outer(site, 0, (), targets)
            return []

        versions(self.context, self.width, self.sources, nest)
        return targets

    @property
    def _in_squares(self) -> bool:
        """Whether rows of a matrix can be reduced by squares of whole chunks."""
        shape, lanes = self.shape, self.context.lanes
        whole = len(shape) == 2 and shape[0] % lanes == 0 and self.axis == self.lane == 1
        words = all(dtype_of(source.element).bits == 32 for source in self.sources)
        return whole and 1 < lanes == self.width and words

    def _squares(self, site: Site, targets: Sequence[Stored]) -> None:
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

        site.each(self.shape[0] // count, lambda i: rows(site.writer.scalars.mul(site.index(i), count)))

    def _turned(self, site: Site, square: Stored) -> Sequence[SSAValue]:
        turned = TransposeChunksOp([square.emit(site, (Coord(i), Coord(0, lanes=True))) for i in range(self.width)])
        site.writer.insert(turned)
        return list(turned.columns)

    def _outer(self, site: Site, axis: int, outer: Coords, targets: Sequence[Stored]) -> None:
        """Loop over the axes that stay, then reduce."""
        if axis == len(self.shape):
            kept = tuple(c for i, c in enumerate(outer) if i != self.axis)
            values = self._along_lanes(site, outer) if self.axis == self.lane else self._across(site, outer)
            for target, value in zip(targets, values, strict=True):
                site.store(target, kept, value)
            return
        if axis == self.axis:
            self._outer(site, axis + 1, (*outer, Coord(0)), targets)
        elif axis == self.lane:
            site.chunks(self.shape[axis], lambda c: self._outer(site, axis + 1, (*outer, c), targets))
        else:
            site.each(self.shape[axis], lambda at: self._outer(site, axis + 1, (*outer, Coord(at)), targets))

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

        def chunks_at(at: SSAValue | int) -> Values:
            return self._chunks(site, self._at(outer, Coord(at)))

        if self.tree is not None:
            return self.tree.combine(site, self.shape[self.axis], chunks_at, width > 1)
        return self._combine(site, self._accumulate(site, self.shape[self.axis], 1, chunks_at, width))

    def _accumulate(
        self, site: Site, count: int, step: int, at: Callable[[SSAValue | int], Values], width: int
    ) -> list[Values]:
        """Combine `count` chunks of each tile, `step` apart, into a few accumulators."""
        number, tiles = min(ACCUMULATORS, count), len(self.sources)
        if number == 0:
            return []
        rounds, rest = divmod(count, number)

        def iteration(base: SSAValue, carried: Sequence[SSAValue]) -> Sequence[SSAValue]:
            scalars, each = site.writer.scalars, _groups(carried, tiles)
            return site.scoped(
                lambda: [v for k, acc in enumerate(each) for v in self.fold(site, acc, at(scalars.add(base, k * step)))]
            )

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

    def _span(self, rounds: int) -> int:
        """Return how many rounds the outermost loop takes at a time: sums of floats are sums of shorter ones."""
        is_sum = isinstance(self.fold, _Function) and self.fold.fn == "add"
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


@lowers(ScanOp)
def lower_scan(context: VectorContext, op: ScanOp) -> None:
    """Write running results to a buffer: whole chunks across rows, single elements along the lanes."""
    fn, source = op.fn.data, context.node(op.source)
    element = source.element
    if fn in ("any", "all"):
        source = bool_of(source)
    start = context.writer.scalars.constant(identity_of(fn, dtype_of(source.element)), source.element)
    fold, ordered = _Function(COMBINE[fn], start), is_ordered(context.profile, fn, dtype_of(source.element).is_float)
    (target,) = _scanned(context, [source], op.axis.data, fold, op.reverse is not None, ordered)
    stored: Node = target if source.element == element else Convert(target.shape, element, target)
    context.define(op.result, stored)


@lowers(ScanByOp)
def lower_scan_by(context: VectorContext, op: ScanByOp) -> None:
    """Scan several tiles together, as one is."""
    sources = [context.node(source) for source in op.sources]
    fold, ordered = _Combiner(context, op.combiner.block), context.profile == "strict"
    targets = _scanned(context, sources, op.axis.data, fold, op.reverse is not None, ordered)
    for output, stored in zip(op.outputs, targets, strict=True):
        context.define(output, stored)


def _scanned(
    context: VectorContext, sources: Sequence[Node], axis: int, fold: _Fold, reverse: bool, ordered: bool
) -> list[Stored]:
    shape = sources[0].shape
    targets = [context.new_buffer(shape, source.element) for source in sources]
    scan = _Scan(sources, axis, fold, reverse, targets, ordered)
    one_by_one = axis == lane_axis(shape) and not ordered
    width = 1 if one_by_one else chunk_width(shape[lane_axis(shape)], context.lanes)

    def nest(site: Site) -> Sequence[SSAValue]:
        scan.outer(site, 0, ())
        return []

    versions(context, width, sources, nest)
    return targets


@dataclass(frozen=True)
class _Scan:
    """Writes the loops of one scan, of tiles of one shape."""

    sources: Sequence[Node]
    axis: int
    fold: _Fold
    reverse: bool
    targets: Sequence[Stored]
    ordered: bool

    def outer(self, site: Site, axis: int, outer: Coords) -> None:
        """Loop over the other axes, then run along the scanned one."""
        shape = self.sources[0].shape
        if axis == len(shape):
            (self._in_order if self.ordered else self._run)(site, outer)
        elif axis == self.axis:
            self.outer(site, axis + 1, (*outer, Coord(0)))
        elif axis == lane_axis(shape):
            site.chunks(shape[axis], lambda c: self.outer(site, axis + 1, (*outer, c)))
        else:
            site.each(shape[axis], lambda at: self.outer(site, axis + 1, (*outer, Coord(at))))

    def _run(self, site: Site, outer: Coords) -> None:
        size, writer = self.sources[0].shape[self.axis], site.writer
        width = site.width if any(c.lanes for c in outer) else 1

        def step(at: SSAValue, before: Values | None) -> Values:
            last = writer.scalars.constant(size - 1)
            place = writer.scalars.binary("sub", last, at) if self.reverse else at
            coords = tuple(Coord(place) if axis == self.axis else c for axis, c in enumerate(outer))
            values = [site.chunk(source, coords) for source in self.sources]
            totals = values if before is None else self.fold(site, before, values)
            for target, total in zip(self.targets, totals, strict=True):
                site.store(target, coords, total)
            return totals

        start = self.fold.start
        if start is not None:
            first, carried = 0, [writer.splat(start, width)]
        else:
            first, carried = 1, site.scoped(lambda: step(writer.scalars.constant(0), None))
        if size > first:
            writer.loop(first, size, 1, carried, lambda at, before: site.scoped(lambda: step(at, list(before))))

    def _in_order(self, site: Site, outer: Coords) -> None:
        """Join each two neighbouring blocks of 2^b elements, for b from 0 up: the first bits in chunks of lanes."""
        size, along = self.sources[0].shape[self.axis], site.width > 1 and not any(c.lanes for c in outer)
        unit = site.width if along else 1

        def at(place: SSAValue | int, lanes: bool = along) -> Coords:
            return tuple(Coord(site.index(place), lanes) if axis == self.axis else c for axis, c in enumerate(outer))

        def begin(place: Coord) -> None:
            values = [site.chunk(source, at(place.base)) for source in self.sources]
            self._put(site, at(place.base), self._within(site, values) if along else values)

        def join(first: SSAValue, length: int) -> None:
            start, end, last = self._halves(site, first, length, size)
            totals = [site.splat_like(total, along) for total in self._held(site, at(last, False))]

            def take_in(each: SSAValue) -> None:
                self._put(site, at(each), self.fold(site, totals, self._held(site, at(each))))

            _loop(site, start, end, unit, take_in)

        if along:
            site.chunks(size, begin)
        else:
            site.each(size, lambda place: begin(Coord(place)))
        for bit in range(unit.bit_length() - 1, (size - 1).bit_length()):
            length = 1 << bit
            _loop(site, 0, size - length, 2 * length, lambda first, length=length: join(first, length))

    def _halves(self, site: Site, first: SSAValue, length: int, size: int) -> tuple[SSAValue, SSAValue, SSAValue]:
        """Return start and end of the block that takes another one in, and where the total of that is."""
        scalars = site.writer.scalars
        second = scalars.add(first, length)
        if self.reverse:
            return first, second, second
        return second, scalars.binary("minimum", scalars.add(second, length), size), scalars.add(first, length - 1)

    def _put(self, site: Site, coords: Coords, values: Values) -> None:
        for target, value in zip(self.targets, values, strict=True):
            site.store(target, coords, value)

    def _held(self, site: Site, coords: Coords) -> Values:
        return [target.emit(site, coords) for target in self.targets]

    def _within(self, site: Site, values: Values) -> Values:
        """Join the blocks that lie within a chunk along the axis; what is past the tile's end is not taken in."""
        writer, layout, i32 = site.writer, chunk_layout(site.width), element_type(dtypes.i32)
        lanes = writer.value(IotaOp(0, i32, layout))
        for bit in range(site.width.bit_length() - 1):
            length = 1 << bit
            totals = [(lane & -2 * length) + length - (not self.reverse) for lane in range(site.width)]
            second = site.apply("and", [lanes, writer.scalars.constant(length, i32)])
            takes = site.apply("eq" if self.reverse else "ne", [second, writer.scalars.constant(0, i32)])
            if self.reverse and site.tail is not None:
                some = (max(site.tail - length - 1, -1) // (2 * length)) * 2 * length + length
                takes = site.apply("and", [takes, site.apply("lt", [lanes, writer.scalars.constant(some, i32)])])
            joined = self.fold(site, [writer.value(RelayoutOp(value, layout, totals)) for value in values], values)
            values = [site.apply("select", [takes, *pair]) for pair in zip(joined, values, strict=True)]
        return values


def _loop(site: Site, first: SSAValue | int, end: SSAValue | int, step: int, body: Callable[[SSAValue], None]) -> None:
    def iteration(at: SSAValue, _carried: Sequence[SSAValue]) -> Sequence[SSAValue]:
        site.scoped(lambda: body(at))
        return []

    site.writer.loop(first, end, step, [], iteration)
