"""The loop nest over a whole tile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from xdsl.ir import SSAValue

from tessera.lower.vector.nodes import SCATTERED_COST, Box, Coord, Coords, Gather, Load, Node, walk
from tessera.lower.vector.site import Site, chunk_width, lane_axis, versions
from tessera.lower.vector.transposed import against_order, squares

if TYPE_CHECKING:
    from tessera.lower.vector.context import VectorContext


PAIRED_COST = 12
"""Vector instructions of a chunk from which on two are computed side by side."""


def run_nest(
    context: VectorContext,
    shape: Sequence[int],
    roots: Sequence[Node],
    body: Callable[[Site, Coords], None],
    boxes: Sequence[Box] = (),
) -> None:
    """Write the loops over a tile of `shape`; `body` is called once per place with the coordinates there.

    Args:
        context: the lowering.
        shape: the tile's shape.
        roots: what `body` evaluates, all at its coordinates.
        body: writes one chunk's work.
        boxes: boxes that `body` stores to.
    """
    axis = lane_axis(shape)
    width = chunk_width(shape[axis], context.lanes)
    turnable = len(shape) == 2 and axis == 1
    if not (turnable and against_order(roots, shape[0], shape[1], width)):
        width = _paired(context, shape[axis], width, roots)

    def nest(site: Site) -> Sequence[SSAValue]:
        turned = against_order(roots, shape[0], shape[1], width) if turnable else []
        if turned:
            squares(
                site, turned, shape[0], shape[1], lambda at: at, lambda s, row, at: body(s, (Coord(row), at))
            )
        else:
            _loops(site, shape, axis, (), roots, body)
        return []

    versions(context, width, roots, nest, boxes)


def _paired(context: VectorContext, size: int, width: int, roots: Sequence[Node]) -> int:
    """Return the width of chunks of two vectors where arithmetic rules, else the given one.

    A long chain of dependent instructions fills a core's schedulers before the next chunk begins; two chains side by
    side keep its units busy. The last chunk must not reach past the padding of a row, which is one of vectors.
    """
    rest = size % (2 * width)
    if width < context.lanes or size < 2 * width or 0 < rest <= width:
        return width
    parts = {node: node for root in roots for node, _ in walk(root)}
    if any(
        isinstance(node, Gather) or (node.cost >= SCATTERED_COST and isinstance(node, Load)) for node in parts
    ):
        return width
    return 2 * width if sum(node.cost for node in parts) >= PAIRED_COST else width


def _loops(
    site: Site,
    shape: Sequence[int],
    lane: int,
    outer: Coords,
    roots: Sequence[Node],
    body: Callable[[Site, Coords], None],
) -> None:
    """Write the loops of the axes after `outer`."""
    axis = len(outer)
    if axis == len(shape):
        body(site, outer)
        return

    def inner(coord: Coord) -> None:
        _loops(site, shape, lane, (*outer, coord), roots, body)

    if axis == lane:
        placeholder = Coord(-1, lanes=site.width > 1)
        rest = (Coord(0),) * (len(shape) - axis - 1)
        for root in roots:
            site.hoist(root, (*outer, placeholder, *rest), placeholder)
        site.chunks(shape[axis], inner)
    else:
        site.each(shape[axis], lambda at: inner(Coord(at)))
