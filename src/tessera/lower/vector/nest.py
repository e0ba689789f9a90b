"""The loop nest over a whole tile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from xdsl.ir import SSAValue

from tessera.ir.types import element_type
from tessera.lower.vector.indexed import Gather, by_rows
from tessera.lower.vector.needs import Need, joined
from tessera.lower.vector.nodes import (
    SCATTERED_COST,
    Apply,
    Box,
    Convert,
    Coord,
    Coords,
    Load,
    Node,
    Pending,
    pending,
    walk,
)
from tessera.lower.vector.site import End, Site, chunk_width, end_of, lane_axis, versions
from tessera.lower.vector.transposed import rectangles, turned
from tessera.numerics import dtypes

if TYPE_CHECKING:
    from tessera.lower.vector.context import VectorContext


F64 = element_type(dtypes.f64)
INTERLEAVED = ((20, 4), (12, 2), (0, 4))
"""Vector instructions of a chunk from which on several are computed side by side, and how many: also where there are
few, which the tests of a loop would outnumber."""


def run_nest(
    context: VectorContext,
    shape: Sequence[int],
    roots: Sequence[Node],
    body: Callable[[Site, Coords], None],
    boxes: Sequence[Box] = (),
    last: bool = False,
    needs: Sequence[Need] = (),
) -> None:
    """Write the loops over a tile of `shape`; `body` is called once per place with the coordinates there.

    Args:
        context: the lowering.
        shape: the tile's shape.
        roots: what `body` evaluates, all at its coordinates.
        body: writes one chunk's work.
        boxes: boxes that `body` stores to.
        last: whether nothing else reads a product among the roots that is computed by strips.
        needs: how much is needed of each axis of what `body` writes; all of it by default.
    """
    needs = needs or (True,) * len(shape)
    axis = lane_axis(shape)
    width = chunk_width(shape[axis], context.lanes)
    waiting = pending(roots)
    straight = len(shape) == 2 and axis == 1
    if waiting and not (last and straight and _by_strips(shape, roots, waiting)):
        for product in waiting:
            product.finish()
        waiting = []
    in_rows = bool(waiting)
    if in_rows or not turned(context, roots, shape, axis):
        width = _interleaved(context, shape[axis], width, roots)

    def nest(site: Site) -> Sequence[SSAValue]:
        ends = _ends(context, site, shape, axis, boxes) if boxes else _needed(context, site, shape, axis, needs)
        if axis in ends:
            site.width = min(width, context.lanes)  # the last chunk has fewer lanes to leave out
        if waiting := pending(roots):
            _strips(site, shape, axis, roots, body, waiting[0], ends)
            return []
        against = None if in_rows else turned(context, roots, shape, axis)
        if against is not None:
            rectangles(site, against, shape, axis, ends, body)
        else:
            _loops(site, shape, axis, (), roots, body, ends)
        return []

    versions(context, width, roots, nest, boxes)


def _needed(
    context: VectorContext, site: Site, shape: Sequence[int], lane: int, needs: Sequence[Need]
) -> dict[int, End]:
    """Return where the axes end that are needed in part only of what a nest writes, besides that of chunks."""
    together = list(map(joined, needs, context.needed(site.kept, tuple(shape))))
    return context.ends([True if axis == lane else need for axis, need in enumerate(together)])


def _ends(context: VectorContext, site: Site, shape: Sequence[int], lane: int, boxes: Sequence[Box]) -> dict[int, End]:
    """Return where the axes of a tile end in the tensor that a nest stores to, which may be before the tile does.

    What lies past the end is not stored, so that the nest need not go there.
    """
    if len(boxes) != 1 or site.interior or site.kept:
        return {}
    (box,) = boxes
    ends = dict[int, End]()
    for axis, dim in enumerate(box.kept):
        size = shape[axis]
        whole = axis != lane or (size > context.lanes and size % context.lanes == 0)
        if whole and dim in box.unsafe and dim in box.forward:
            ends[axis] = end_of(context.writer.scalars, box.offsets[dim], box.bounds[dim], size)
    return ends


def _interleaved(context: VectorContext, size: int, width: int, roots: Sequence[Node]) -> int:
    """Return the width of chunks of several vectors where arithmetic or tests dominate, else the given one.

    A long chain of dependent instructions fills a core's schedulers before the next chunk begins; chains side by side
    keep its units busy. Four chains need registers for their values: 32 of them, and no f64, which takes two. The
    last chunk must not reach past the padding of a row, which is one of vectors.
    """
    if width < context.lanes:
        return width
    parts = {node: node for root in roots for node, _ in walk(root)}
    if any(_is_scattered(node) for node in parts):
        return width
    cost = sum(node.cost for node in parts)
    for least, count in INTERLEAVED:
        rest = size % (count * width)
        fits = size >= count * width and not 0 < rest <= (count - 1) * width
        if cost >= least and fits and (count == 2 or roomy(context, parts)):
            return count * width
    return width


def _is_scattered(node: Node) -> bool:
    """Return whether the lanes of a chunk are loaded from places apart."""
    return isinstance(node, Gather | Load) and node.cost >= SCATTERED_COST


def roomy(context: VectorContext, parts: Iterable[Node]) -> bool:
    """Return whether registers hold four chunks of these tiles."""
    many = bool({"avx512f", "neon"} & context.target.features)
    return many and all(node.element != F64 for node in parts if isinstance(node, Apply | Convert))


def _by_strips(shape: Sequence[int], roots: Sequence[Node], waiting: Sequence[Pending]) -> bool:
    """Return whether a nest takes one product in the order in which it can be computed."""
    straight = all(aligned for root in roots for n, aligned in walk(root) if isinstance(n, Pending))
    return len(waiting) == 1 and waiting[0].shape == tuple(shape) and straight


def _strips(
    site: Site,
    shape: Sequence[int],
    lane: int,
    roots: Sequence[Node],
    body: Callable[[Site, Coords], None],
    product: Pending,
    ends: Mapping[int, End],
) -> None:
    """Write the loops over a tile, as far as `ends` says, and, before the rows of each strip, their product."""
    scalars, rows = site.writer.scalars, ends[0].count if 0 in ends else shape[0]

    def strip(start: SSAValue, _carried: object) -> Sequence[SSAValue]:
        product.first = product.compute_strip(start)
        following = scalars.add(start, product.rows)
        if 0 in ends:
            following = scalars.binary("minimum", following, rows)

        def row(at: SSAValue, _carried: object) -> Sequence[SSAValue]:
            site.scoped(lambda: _loops(site, shape, lane, (Coord(at),), roots, body, ends))
            return []

        site.scoped(lambda: site.writer.loop(start, following, 1, [], row))
        return []

    site.writer.loop(0, rows, product.rows, [], strip)


def _loops(
    site: Site,
    shape: Sequence[int],
    lane: int,
    outer: Coords,
    roots: Sequence[Node],
    body: Callable[[Site, Coords], None],
    ends: Mapping[int, End],
) -> None:
    """Write the loops of the axes after `outer`, as far as `ends` says."""
    axis = len(outer)
    if axis == len(shape):
        body(site, outer)
        return

    def inner(coord: Coord) -> None:
        _loops(site, shape, lane, (*outer, coord), roots, body, ends)

    if axis == lane:
        placeholder = Coord(-1, lanes=site.width > 1)
        rest = (Coord(0),) * (len(shape) - axis - 1)
        for root in roots:
            site.hoist(root, (*outer, placeholder, *rest), placeholder)

        def chunks() -> Sequence[SSAValue]:
            if axis in ends:
                site.chunks_before(ends[axis], inner)
            else:
                site.chunks(shape[axis], inner)
            return []

        by_rows(site, shape[axis], roots, (*outer, placeholder, *rest), chunks)
    elif axis in ends:
        site.each_before(ends[axis], lambda at: inner(Coord(at)))
    else:
        site.each(shape[axis], lambda at: inner(Coord(at)))
