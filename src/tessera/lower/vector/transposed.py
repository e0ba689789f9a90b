"""Tiles read against their storage order: rectangles are loaded along the rows and transposed in registers.

A transposed tile, evaluated along its own last axis, would gather single elements a row apart. Here a nest walks
rectangles of as many elements as a vector has along both axes, or as many as a short axis has: the rectangle is
evaluated along the other axis, where it is contiguous, and the transposed chunks are handed to the nest's body as if
they had been evaluated at their own places.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from xdsl.ir import SSAValue

from tessera.data import dataclass
from tessera.ir.target.arithmetic import TransposeChunksOp
from tessera.ir.types import i1
from tessera.lower.vector.indexed import Gather
from tessera.lower.vector.nodes import Coord, Coords, Load, Node, Stored, Uniform
from tessera.lower.vector.site import End, Site, chunk_width
from tessera.lower.vector.writer import chunk_type

if TYPE_CHECKING:
    from tessera.lower.vector.context import VectorContext


@dataclass(frozen=True)
class Turned:
    """What a nest reads in rectangles.

    Args:
        nodes: the tiles that are contiguous along another axis than the nest's chunks.
        axis: that axis.
        height: how long a rectangle is along it.
    """

    nodes: Sequence[Node]
    axis: int
    height: int


def turned(context: VectorContext, roots: Sequence[Node], shape: Sequence[int], lane: int) -> Turned | None:
    """Return what a nest over tiles of `shape` with chunks along `lane` is to read in rectangles, None for nothing.

    Rectangles of fewer elements than a vector has gain nothing.
    """
    width = chunk_width(shape[lane], context.lanes)
    for axis in reversed(range(len(shape))):
        height = chunk_width(shape[axis], context.lanes)
        if axis != lane and min(width, height) > 1 and width * height >= context.lanes:
            nodes = against_order(context, roots, axis, lane)
            if nodes:
                return Turned(nodes, axis, height)
    return None


def against_order(context: VectorContext, roots: Sequence[Node], across: int = 0, along: int = 1) -> list[Node]:
    """Return the outermost nodes that are contiguous along one axis and not along another; none unless scheduled.

    Args:
        context: the lowering.
        roots: tiles of one shape.
        across: the axis along which they should be contiguous.
        along: the axis along which they should not be.
    """
    if not context.squares or context.lanes == 1:
        return []
    rank = len(roots[0].shape)
    column, row = (tuple(Coord(0, lanes=axis == lane) for axis in range(rank)) for lane in (across, along))
    found, seen, order = dict[Node, None](), set[Node](), _Order()
    work = list(reversed(roots))
    while work:
        node = work.pop()
        if node in seen or not order.scatters(node, row):
            continue
        seen.add(node)
        if not order.scatters(node, column) and node.element != i1 and not order.wants(node):
            found[node] = None
        elif node.stored is None and node.aligned:
            work += reversed([operand for operand, _ in node.operands(row) if operand.shape == node.shape])
    return list(found)


class _Order:
    """Answers, each in time linear in the parts that were not asked about before, how tiles lie in memory."""

    def __init__(self) -> None:
        self._scatters: dict[tuple[Node, Coords], bool] = {}
        self._wants: dict[Node, bool] = {}

    def scatters(self, node: Node, coords: Coords) -> bool:
        """Return whether evaluating a chunk at `coords` takes access to single elements."""
        known, work = self._scatters, [(node, coords)]
        while work:
            part, at = work[-1]
            if (part, at) in known:
                work.pop()
                continue
            own = _scatters_itself(part, at)
            operands = part.operands(at) if own is None else []
            missing = [each for each in operands if each not in known]
            if missing:
                work += missing
            else:
                known[part, at] = any(known[each] for each in operands) if own is None else own
                work.pop()
        return known[node, coords]

    def wants(self, node: Node) -> bool:
        """Return whether a tile, or one that it is computed from, is to be stored when it is computed."""
        known, work = self._wants, [node]
        while work:
            part = work[-1]
            if part in known:
                work.pop()
                continue
            read = part.stored or part
            operands = [operand for operand, _ in read.operands((Coord(0),) * len(read.shape))]
            missing = [each for each in operands if each not in known]
            if missing:
                work += missing
            else:
                known[part] = read.wanted or any(known[each] for each in operands)
                work.pop()
        return known[node]


def _scatters_itself(part: Node, at: Coords) -> bool | None:
    """Return whether a node takes access to single elements, None where its operands tell."""
    lanes = [axis for axis, coord in enumerate(at) if coord.lanes]
    if not lanes or isinstance(part, Uniform):
        return False
    stored = part.stored or part
    if isinstance(stored, Stored):
        return stored.type.strides[lanes[0]] != 1
    if isinstance(part, Gather):
        return part.elements.run(at) is None
    if isinstance(part, Load) and not part.box.unit[part.box.kept[lanes[0]]]:
        return True
    return None


def rectangles(
    site: Site,
    of: Turned,
    shape: Sequence[int],
    lane: int,
    ends: Mapping[int, End],
    body: Callable[[Site, Coords], None],
) -> None:
    """Loop over a tile in rectangles; `body` is called for each chunk, with what is turned evaluated already.

    Args:
        site: where the loops go.
        of: what is read against its order.
        shape: the tile's shape.
        lane: the axis that chunks run along.
        ends: how far axes are walked.
        body: writes the work of one chunk.
    """
    site.in_order = False
    _Rectangles(site, of, shape, lane, ends, body).outer({})


@dataclass(frozen=True)
class _Rectangles:
    """Writes the loops over rectangles; see `rectangles`."""

    site: Site
    of: Turned
    shape: Sequence[int]
    lane: int
    ends: Mapping[int, End]
    body: Callable[[Site, Coords], None]

    def outer(self, places: Mapping[int, Coord]) -> None:
        """Loop over the axes that rectangles do not have."""
        rest = [axis for axis in range(len(self.shape)) if axis not in (*places, self.of.axis, self.lane)]
        if not rest:
            self._groups(places)
        elif rest[0] in self.ends:
            self.site.each_before(self.ends[rest[0]], lambda at: self.outer({**places, rest[0]: Coord(at)}))
        else:
            self.site.each(self.shape[rest[0]], lambda at: self.outer({**places, rest[0]: Coord(at)}))

    def _groups(self, places: Mapping[int, Coord]) -> None:
        """Loop over the rectangles."""
        self._across(lambda first, count: self._along(lambda at: self._rectangle(places, first, count, at)))

    def _across(self, body: Callable[[SSAValue, int], None]) -> None:
        """Loop over groups of rows, of which the incomplete one comes after the loop."""
        site, height, scalars = self.site, self.of.height, self.site.writer.scalars
        full, rest = divmod(self.shape[self.of.axis], height)
        end = None if rest else self.ends.get(self.of.axis)
        number = full if end is None else scalars.ceildiv(end.count, height)
        if full:
            site.each(number, lambda at: body(scalars.mul(site.index(at), height), height))
        if rest:
            body(site.index(full * height), rest)

    def _along(self, body: Callable[[Coord], None]) -> None:
        """Loop over chunks."""
        site = self.site
        if self.lane in self.ends:
            site.span(self.ends[self.lane].count, site.width, lambda at: body(Coord(at, lanes=True)))
        else:
            site.chunks(self.shape[self.lane], body)

    def _coords(self, places: Mapping[int, Coord], row: Coord, column: Coord) -> Coords:
        found = {**places, self.of.axis: row, self.lane: column}
        return tuple(found[axis] for axis in range(len(self.shape)))

    def _rectangle(self, places: Mapping[int, Coord], first: SSAValue, count: int, at: Coord) -> None:
        """Transpose one of `count` rows in registers, and do the work of each row's chunk."""
        rows = [self.site.writer.scalars.add(first, number) for number in range(count)]
        columns = self._columns(at)
        for node in self.of.nodes:
            chunks = [self._row(places, node, first, count, column) for column in columns]
            chunks += [self._nothing(node)] * (self.site.width - len(columns))
            op = TransposeChunksOp(chunks, chunk_type(node.element, self.site.width))
            self.site.writer.insert(op)
            for row, chunk in zip(rows, op.columns, strict=False):
                self.site.seed(node, self._coords(places, Coord(row), at), chunk)
        for row in rows:
            self.body(self.site, self._coords(places, Coord(row), at))

    def _columns(self, at: Coord) -> list[SSAValue]:
        """Return where the columns of a rectangle are; those past an end are the last one before it."""
        site, scalars, end = self.site, self.site.writer.scalars, self.ends.get(self.lane)
        columns = [scalars.add(site.index(at.base), number) for number in range(site.tail or site.width)]
        if end is None:
            return columns
        last = scalars.binary("sub", end.count, 1)
        columns = [scalars.binary("minimum", column, last) for column in columns]
        site.lie_before(columns, end)
        return columns

    def _row(self, places: Mapping[int, Coord], node: Node, first: SSAValue, count: int, column: SSAValue) -> SSAValue:
        """Return what is turned along its own rows, the first `count` elements of a chunk."""
        site, before = self.site, (self.site.width, self.site.tail)
        site.width, site.tail = self.of.height, count if count < self.of.height else None
        chunk = site.chunk(node, self._coords(places, Coord(first, lanes=True), Coord(column)))
        site.width, site.tail = before
        return chunk

    def _nothing(self, node: Node) -> SSAValue:
        return self.site.writer.splat(self.site.zero(node.element), self.of.height)
