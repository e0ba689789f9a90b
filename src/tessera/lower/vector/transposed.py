"""Tiles read against their storage order: squares of chunks are loaded along the rows and transposed in registers.

A transposed tile, evaluated along its own last axis, would gather single elements a row apart. Here a nest walks
squares of `lanes` x `lanes` elements: the square is evaluated along the other axis, where it is contiguous, and the
transposed chunks are handed to the nest's body as if they had been evaluated at their own places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.ir import SSAValue

from tessera.ir.target.arithmetic import TransposeChunksOp
from tessera.ir.types import i1
from tessera.lower.vector.nodes import SCATTERED_COST, Coord, Coords, Gather, Load, Node, Stored, Uniform
from tessera.lower.vector.site import Site


def against_order(roots: Sequence[Node], rows: int, columns: int, lanes: int) -> list[Node]:
    """Return the outermost nodes that are contiguous along axis 0 and not along axis 1.

    Args:
        roots: two-dimensional tiles.
        rows: their first size.
        columns: their second size.
        lanes: elements of a chunk.
    """
    if lanes == 1 or rows < lanes or columns < lanes:
        return []
    found: dict[Node, None] = {}
    for root in roots:
        _collect(root, found)
    return list(found)


def _collect(node: Node, found: dict[Node, None]) -> None:
    across, along = (Coord(0), Coord(0, True)), (Coord(0, True), Coord(0))
    if _scattered(node, across) == 0:
        return
    if _scattered(node, along) == 0 and node.element != i1 and not _wanted(node):
        found[node] = None
        return
    if node.stored is None and node.aligned:
        for operand, _ in node.operands(across):
            if len(operand.shape) == 2:
                _collect(operand, found)


def _scattered(node: Node, coords: Coords) -> int:
    """Return how much of evaluating a chunk at `coords` is access to single elements."""
    lanes = [axis for axis, coord in enumerate(coords) if coord.lanes]
    if not lanes or isinstance(node, Uniform):
        return 0
    stored = node.stored or node
    if isinstance(stored, Stored):
        return 0 if stored.type.strides[lanes[0]] == 1 else SCATTERED_COST
    own = SCATTERED_COST if isinstance(node, Gather) else 0
    if isinstance(node, Load):
        own = 0 if node.box.unit[node.box.kept[lanes[0]]] else SCATTERED_COST
    return own + sum(_scattered(operand, mapped) for operand, mapped in node.operands(coords))


def _wanted(node: Node) -> bool:
    if node.stored is not None:
        return False
    return node.wanted or any(_wanted(operand) for operand, _ in node.operands((Coord(0),) * len(node.shape)))


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
