"""Tiles read against their storage order: squares of chunks are loaded along the rows and transposed in registers.

A transposed tile, evaluated along its own last axis, would gather single elements a row apart. Here a nest walks
squares of `lanes` x `lanes` elements: the square is evaluated along the other axis, where it is contiguous, and the
transposed chunks are handed to the nest's body as if they had been evaluated at their own places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from xdsl.ir import SSAValue

from tessera.ir.target.arithmetic import TransposeChunksOp
from tessera.ir.types import i1
from tessera.lower.vector.indexed import Gather
from tessera.lower.vector.nodes import Coord, Coords, Load, Node, Stored, Uniform
from tessera.lower.vector.site import Site

if TYPE_CHECKING:
    from tessera.lower.vector.context import VectorContext

ACROSS = (Coord(0), Coord(0, lanes=True))
ALONG = (Coord(0, lanes=True), Coord(0))


def against_order(context: VectorContext, roots: Sequence[Node], rows: int, columns: int, lanes: int) -> list[Node]:
    """Return the outermost nodes that are contiguous along axis 0 and not along axis 1; none unless scheduled.

    Args:
        context: the lowering.
        roots: two-dimensional tiles.
        rows: their first size.
        columns: their second size.
        lanes: elements of a chunk.
    """
    if not context.squares or lanes == 1 or rows < lanes or columns < lanes:
        return []
    found, seen, order = dict[Node, None](), set[Node](), _Order()
    work = list(reversed(roots))
    while work:
        node = work.pop()
        if node in seen or not order.scatters(node, ACROSS):
            continue
        seen.add(node)
        if not order.scatters(node, ALONG) and node.element != i1 and not order.wants(node):
            found[node] = None
        elif node.stored is None and node.aligned:
            work += reversed([operand for operand, _ in node.operands(ACROSS) if len(operand.shape) == 2])
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


def squares(
    site: Site,
    nodes: Sequence[Node],
    rows: int,
    columns: int,
    column_of: Callable[[Coord], Coord],
    body: Callable[[Site, SSAValue | int, Coord], None],
) -> None:
    """Loop over a tile in squares; `body` is called for each row and chunk, with `nodes` evaluated already.

    Args:
        site: where the loops go.
        nodes: what is read against its order.
        rows: first size of the tile.
        columns: second size.
        column_of: the place in `nodes` of a chunk of the loop.
        body: writes the work of one row and chunk.
    """
    lanes, scalars = site.width, site.writer.scalars
    full, rest = divmod(rows, lanes)
    site.in_order = False

    def strip(first: SSAValue | int) -> None:
        places = [scalars.add(site.index(first), j) for j in range(lanes)]

        def chunk(at: Coord) -> None:
            if site.tail is None:
                _transpose(site, nodes, first, places, column_of(at))
                for place in places:
                    body(site, place, at)
            else:
                site.each(lanes, lambda j: body(site, scalars.add(site.index(first), j), at))

        site.chunks(columns, chunk)

    site.each(full, lambda number: strip(_times(site, number, lanes)))

    def last(j: SSAValue | int) -> None:
        place = scalars.add(site.index(j), full * lanes)
        site.chunks(columns, lambda at: body(site, place, at))

    if rest:
        site.each(rest, last)


def _times(site: Site, number: SSAValue | int, factor: int) -> SSAValue | int:
    return number * factor if isinstance(number, int) else site.writer.scalars.mul(number, factor)


def _transpose(
    site: Site, nodes: Sequence[Node], first: SSAValue | int, places: Sequence[SSAValue], column: Coord
) -> None:
    scalars = site.writer.scalars
    for node in nodes:
        chunks = [
            site.chunk(node, (Coord(first, lanes=True), Coord(scalars.add(site.index(column.base), i))))
            for i in range(site.width)
        ]
        op = TransposeChunksOp(chunks)
        site.writer.insert(op)
        for place, result in zip(places, op.columns, strict=True):
            site.seed(node, (Coord(place), column), result)
