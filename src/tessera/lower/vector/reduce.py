"""Rules of reductions and scans.

Order of a reduction, which depends on the tile's shape and the target's vector width only: along the lane
axis, chunk c goes to accumulator c mod `ACCUMULATORS` and its lanes stay apart; accumulators are then
combined as a balanced tree, and last the lanes, halves at a time: of as many rows as there are lanes at once, where
there are so many. Along another axis, position p goes to accumulator p mod `ACCUMULATORS`. It never depends on the
number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.ir import Attribute, SSAValue

from tessera.ir.target.arithmetic import CastOp, ReduceRegistersOp, TransposeChunksOp
from tessera.ir.tile.reduce import ReduceOp, ScanOp
from tessera.ir.types import dtype_of
from tessera.lower.vector.context import VectorContext
from tessera.lower.vector.indexed import by_rows
from tessera.lower.vector.next_rows import BUSY_COST, ask_for, take_rows
from tessera.lower.vector.nodes import Convert, Coord, Coords, Node, Stored, bool_of, costs_more
from tessera.lower.vector.rules import lowers
from tessera.lower.vector.site import Site, chunk_width, lane_axis, versions
from tessera.numerics.functions import COMBINE

ACCUMULATORS = 4


def identity(fn: str, element: Attribute) -> int | float | bool:
    """Return the value that a reduction starts from."""
    dtype = dtype_of(element)
    if fn in ("sum", "any"):
        return 0
    if fn in ("prod", "all"):
        return 1
    if dtype.is_float:
        return float("-inf") if fn == "max" else float("inf")
    if dtype.kind == "uint":
        return 0 if fn == "max" else (1 << dtype.bits) - 1
    low = -(1 << (dtype.bits - 1))
    return low if fn == "max" else -low - 1


@lowers(ReduceOp)
def lower_reduce(context: VectorContext, op: ReduceOp) -> None:
    """Reduce along one axis at once; the result is a scalar or stored."""
    fn, axis = op.fn.data, op.axis.data
    source = context.node(op.source)
    element = source.element
    if fn in ("any", "all"):
        source = bool_of(source)
    reduction = _Reduction(context, source, axis, COMBINE[fn], identity(fn, source.element))
    if len(source.shape) == 1:
        (result,) = reduction.run_to_scalar()
        if source.element != element:
            result = context.writer.value(CastOp(result, element))
        context.define_scalar(op.result, result)
        return
    stored: Node = reduction.run()
    if source.element != element:
        stored = Convert(stored.shape, element, stored)
    context.define(op.result, stored)


class _Reduction:
    """Writes the loops of one reduction."""

    def __init__(self, context: VectorContext, source: Node, axis: int, fn: str, start: int | float | bool):
        self.context = context
        self.source = source
        self.axis = axis
        self.fn = fn
        self.start = context.writer.scalars.constant(start, source.element)
        self.lane = lane_axis(source.shape)
        self.width = chunk_width(source.shape[self.lane], context.lanes)
        self.rows = take_rows(context, source.shape) if costs_more(source, BUSY_COST - 1) else []

    def run_to_scalar(self) -> list[SSAValue]:
        """Reduce a one-dimensional tile."""
        return versions(self.context, self.width, [self.source], lambda site: [self._along_lanes(site, ())])

    def run(self) -> Stored:
        """Reduce a tile of more dimensions to a buffer."""
        shape = tuple(size for axis, size in enumerate(self.source.shape) if axis != self.axis)
        target = self.context.new_buffer(shape, self.source.element)

        def nest(site: Site) -> Sequence[SSAValue]:
            if self._in_squares:
                self._squares(site, target)
            else:
                self._outer(site, 0, (), target)
            return []

        versions(self.context, self.width, [self.source], nest)
        return target

    @property
    def _in_squares(self) -> bool:
        """Whether rows of a matrix can be reduced by squares of whole chunks."""
        shape, lanes = self.source.shape, self.context.lanes
        whole = len(shape) == 2 and shape[0] % lanes == 0 and self.axis == self.lane == 1
        return whole and 1 < lanes == self.width and dtype_of(self.source.element).bits == 32

    def _squares(self, site: Site, target: Stored) -> None:
        """Reduce each row to a chunk, and then the lanes of many chunks at once: alone, each would wait for itself."""
        count = self.width
        square = self.context.new_buffer((count, count), self.source.element)

        def rows(first: SSAValue) -> None:
            scalars = site.writer.scalars

            def row(number: SSAValue | int) -> None:
                outer = (Coord(scalars.add(first, number)), Coord(0))
                site.store(square, (Coord(number), Coord(0, lanes=True)), self._chunk_of(site, outer))

            site.each(count, row)
            turned = TransposeChunksOp([square.emit(site, (Coord(i), Coord(0, lanes=True))) for i in range(count)])
            site.writer.insert(turned)
            values: list[SSAValue] = list(turned.columns)
            while len(values) > 1:
                half = len(values) // 2
                values = [site.apply(self.fn, pair) for pair in zip(values[:half], values[half:], strict=True)]
            site.store(target, (Coord(first, lanes=True),), values[0])

        site.each(self.source.shape[0] // count, lambda i: rows(site.writer.scalars.mul(site.index(i), count)))

    def _outer(self, site: Site, axis: int, outer: Coords, target: Stored) -> None:
        """Loop over the axes that stay, then reduce."""
        if axis == len(self.source.shape):
            kept = tuple(c for i, c in enumerate(outer) if i != self.axis)
            value = self._along_lanes(site, outer) if self.axis == self.lane else self._across(site, outer)
            site.store(target, kept, value)
            return
        if axis == self.axis:
            self._outer(site, axis + 1, (*outer, Coord(0)), target)
        elif axis == self.lane:
            site.chunks(self.source.shape[axis], lambda c: self._outer(site, axis + 1, (*outer, c), target))
        else:
            size = self.source.shape[axis]
            site.each(size, lambda at: self._outer(site, axis + 1, (*outer, Coord(at)), target))

    def _at(self, outer: Coords, coord: Coord) -> Coords:
        if not outer:
            return (coord,)
        return tuple(coord if axis == self.axis else c for axis, c in enumerate(outer))

    def _chunk(self, site: Site, coords: Coords) -> SSAValue:
        for row in self.rows:
            ask_for(site, row, coords)
        return site.chunk(self.source, coords)

    def _along_lanes(self, site: Site, outer: Coords) -> SSAValue:
        """Reduce the lane axis to a scalar."""
        total = self._chunk_of(site, outer)
        if self.width == 1:
            return total
        return site.writer.value(ReduceRegistersOp(total, 0, self.fn, self.source.element))

    def _chunk_of(self, site: Site, outer: Coords) -> SSAValue:
        """Reduce the lane axis to one chunk."""
        size, width = self.source.shape[self.axis], self.width
        inner = Coord(-1, lanes=width > 1)
        site.hoist(self.source, self._at(outer, inner), inner)

        def chunk(at: SSAValue | int) -> SSAValue:
            return self._chunk(site, self._at(outer, Coord(at, lanes=width > 1)))

        def chunks() -> Sequence[SSAValue]:
            full, rest = divmod(size, width)
            partial = self._accumulate(site, full, width, chunk, width)
            if rest:
                site.tail = rest
                last = site.scoped(lambda: self._masked_tail(site, chunk(full * width)))
                site.tail = None
                partial = [*partial, last]
            return [self._combine(site, partial)]

        (total,) = by_rows(site, size, [self.source], self._at(outer, inner), chunks)
        return total

    def _masked_tail(self, site: Site, value: SSAValue) -> SSAValue:
        valid = site.valid()
        assert valid is not None
        return site.apply("select", [valid, value, self.start])

    def _across(self, site: Site, outer: Coords) -> SSAValue:
        """Reduce an axis that is not the lane axis: chunks are combined whole."""
        inner = Coord(-1)
        site.hoist(self.source, self._at(outer, inner), inner)
        width = self.width if any(c.lanes for c in outer) else 1

        def chunk(at: SSAValue | int) -> SSAValue:
            return self._chunk(site, self._at(outer, Coord(at)))

        return self._combine(site, self._accumulate(site, self.source.shape[self.axis], 1, chunk, width))

    def _accumulate(
        self, site: Site, count: int, step: int, at: Callable[[SSAValue | int], SSAValue], width: int
    ) -> list[SSAValue]:
        """Combine `count` values, `step` apart, into a few accumulators."""
        number = min(ACCUMULATORS, count)
        if number == 0:
            return []
        rounds, rest = divmod(count, number)

        def iteration(base: SSAValue, carried: Sequence[SSAValue]) -> Sequence[SSAValue]:
            scalars = site.writer.scalars
            return site.scoped(
                lambda: [site.apply(self.fn, [acc, at(scalars.add(base, k * step))]) for k, acc in enumerate(carried)]
            )

        if rounds == 1:
            totals = [at(k * step) for k in range(number)]
        else:
            start = [site.writer.splat(self.start, width)] * number
            totals = site.writer.loop(0, rounds * number * step, number * step, start, iteration)
        for k in range(rest):
            totals[k] = site.apply(self.fn, [totals[k], at((rounds * number + k) * step)])
        return totals

    def _combine(self, site: Site, values: list[SSAValue]) -> SSAValue:
        while len(values) > 1:
            pairs = [values[i : i + 2] for i in range(0, len(values), 2)]
            values = [site.apply(self.fn, pair) if len(pair) == 2 else pair[0] for pair in pairs]
        return values[0]


@lowers(ScanOp)
def lower_scan(context: VectorContext, op: ScanOp) -> None:
    """Write running results to a buffer: whole chunks across rows, single elements along the lanes."""
    fn, axis, source = op.fn.data, op.axis.data, context.node(op.source)
    element = source.element
    if fn in ("any", "all"):
        source = bool_of(source)
    target = context.new_buffer(source.shape, source.element)
    start = context.writer.scalars.constant(identity(fn, source.element), source.element)
    scan = _Scan(source, axis, COMBINE[fn], start, op.reverse is not None, target)
    width = 1 if axis == lane_axis(source.shape) else chunk_width(source.shape[lane_axis(source.shape)], context.lanes)

    def nest(site: Site) -> Sequence[SSAValue]:
        scan.outer(site, 0, ())
        return []

    versions(context, width, [source], nest)
    stored: Node = target if source.element == element else Convert(target.shape, element, target)
    context.define(op.result, stored)


class _Scan:
    """Writes the loops of one scan."""

    def __init__(self, source: Node, axis: int, fn: str, start: SSAValue, reverse: bool, target: Stored):
        self.source, self.axis, self.fn, self.start = source, axis, fn, start
        self.reverse, self.target = reverse, target
        self.lane = lane_axis(source.shape)

    def outer(self, site: Site, axis: int, outer: Coords) -> None:
        """Loop over the other axes, then run along the scanned one."""
        size = self.source.shape[axis] if axis < len(self.source.shape) else 0
        if axis == len(self.source.shape):
            self._run(site, outer)
        elif axis == self.axis:
            self.outer(site, axis + 1, (*outer, Coord(0)))
        elif axis == self.lane:
            site.chunks(size, lambda c: self.outer(site, axis + 1, (*outer, c)))
        else:
            site.each(size, lambda at: self.outer(site, axis + 1, (*outer, Coord(at))))

    def _run(self, site: Site, outer: Coords) -> None:
        size, writer = self.source.shape[self.axis], site.writer
        width = site.width if any(c.lanes for c in outer) else 1

        def iteration(at: SSAValue, carried: Sequence[SSAValue]) -> Sequence[SSAValue]:
            def step() -> list[SSAValue]:
                last = writer.scalars.constant(size - 1)
                place = writer.scalars.binary("sub", last, at) if self.reverse else at
                coords = tuple(Coord(place) if axis == self.axis else c for axis, c in enumerate(outer))
                total = site.apply(self.fn, [carried[0], site.chunk(self.source, coords)])
                site.store(self.target, coords, total)
                return [total]

            return site.scoped(step)

        writer.loop(0, size, 1, [writer.splat(self.start, width)], iteration)
