"""Rules of scans: of whole chunks across rows; along the lanes within each chunk, and then from chunk to chunk.

Under `strict`, float sums and products and combiners take the order of `numerics.order`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.ir import SSAValue

from tessera.data import dataclass
from tessera.ir.target.arithmetic import IotaOp, RelayoutOp
from tessera.ir.tile.reduce import ScanByOp, ScanOp
from tessera.ir.types import dtype_of, element_type
from tessera.lower.combiners import Values
from tessera.lower.vector.context import VectorContext
from tessera.lower.vector.folds import Combiner, Fold, Function
from tessera.lower.vector.nodes import Convert, Coord, Coords, Node, Stored, bool_of
from tessera.lower.vector.rules import lowers
from tessera.lower.vector.site import Site, chunk_width, lane_axis, versions
from tessera.lower.vector.writer import chunk_layout
from tessera.numerics import dtypes
from tessera.numerics.functions import COMBINE, identity_of
from tessera.numerics.order import is_ordered


@lowers(ScanOp)
def lower_scan(context: VectorContext, op: ScanOp) -> None:
    """Write running results to a buffer."""
    fn, source = op.fn.data, context.node(op.source)
    element = source.element
    if fn in ("any", "all"):
        source = bool_of(source)
    start = context.writer.scalars.constant(identity_of(fn, dtype_of(source.element)), source.element)
    fold, ordered = Function(COMBINE[fn], start), is_ordered(context.profile, fn, dtype_of(source.element).is_float)
    (target,) = _scanned(context, [source], op.axis.data, fold, op.reverse is not None, ordered)
    stored: Node = target if source.element == element else Convert(target.shape, element, target)
    context.define(op.result, stored)


@lowers(ScanByOp)
def lower_scan_by(context: VectorContext, op: ScanByOp) -> None:
    """Scan several tiles together, as one is."""
    sources = [context.node(source) for source in op.sources]
    fold, ordered = Combiner(context, op.combiner.block), context.profile == "strict"
    targets = _scanned(context, sources, op.axis.data, fold, op.reverse is not None, ordered)
    for output, stored in zip(op.outputs, targets, strict=True):
        context.define(output, stored)


def _scanned(
    context: VectorContext, sources: Sequence[Node], axis: int, fold: Fold, reverse: bool, ordered: bool
) -> list[Stored]:
    shape = sources[0].shape
    targets = [context.new_buffer(shape, source.element) for source in sources]
    scan = _Scan(sources, axis, fold, reverse, targets, ordered)
    width = chunk_width(shape[lane_axis(shape)], context.lanes)

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
    fold: Fold
    reverse: bool
    targets: Sequence[Stored]
    ordered: bool

    def outer(self, site: Site, axis: int, outer: Coords) -> None:
        """Loop over the other axes, then run along the scanned one."""
        shape = self.sources[0].shape
        if axis == len(shape):
            along = site.width > 1 and self.axis == lane_axis(shape)
            (self._in_order if self.ordered else self._along if along else self._run)(site, outer)
        elif axis == self.axis:
            self.outer(site, axis + 1, (*outer, Coord(0)))
        elif axis == lane_axis(shape):
            site.chunks(shape[axis], lambda c: self.outer(site, axis + 1, (*outer, c)))
        else:
            site.each(shape[axis], lambda at: self.outer(site, axis + 1, (*outer, Coord(at))))

    def _along(self, site: Site, outer: Coords) -> None:
        """Scan chunk by chunk along the lanes: each within itself, and together with the total of those before it."""
        size, width, writer = self.sources[0].shape[self.axis], site.width, site.writer
        count, rest = divmod(size, width)
        last = 0 if self.reverse else width - 1

        def chunk(place: SSAValue | int, before: Values | None) -> Values:
            at = tuple(Coord(place, lanes=True) if axis == self.axis else c for axis, c in enumerate(outer))
            within = self._within(site, [site.chunk(source, at) for source in self.sources])
            ends = [writer.value(RelayoutOp(each, chunk_layout(width), [last] * width)) for each in within]
            self._put(site, at, within if before is None else self.fold(site, before, within))
            return ends if before is None else self.fold(site, before, ends)

        def whole(number: SSAValue, before: Sequence[SSAValue]) -> Values:
            scalars = writer.scalars
            place = scalars.mul(number, width)
            if self.reverse:
                place = scalars.binary("sub", scalars.constant((count - 1) * width), place)
            return site.scoped(lambda: chunk(place, list(before)))

        def incomplete(before: Values | None) -> Values:
            site.tail = rest
            found = site.scoped(lambda: chunk(count * width, before))
            site.tail = None
            return found

        before = incomplete(None) if rest and (self.reverse or not count) else None
        first = 0
        if before is None:
            before, first = site.scoped(lambda: chunk((count - 1) * width if self.reverse else 0, None)), 1
        if count > first:
            before = writer.loop(first, count, 1, before, whole)
        if rest and count and not self.reverse:
            incomplete(list(before))

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
