"""Rules of parts of tiles: a tile is kept in a buffer, from which its parts are read where they are used.

What leaves the tile is read from a wider buffer, in which zeros stand around it, and what wraps around from one in
which the tile stands twice.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Attribute, SSAValue

from tessera.data import dataclass
from tessera.ir.target.arithmetic import CastOp, ElementwiseOp
from tessera.ir.tile.parts import PartOp, TakeOp
from tessera.ir.tile.types import shape_of
from tessera.ir.types import NarrowFloatType, element_type, i1
from tessera.lower.parts import constant_starts, stays_inside
from tessera.lower.vector.context import VectorContext
from tessera.lower.vector.nodes import Apply, Coord, Coords, Node, Pending, Stored, Uniform
from tessera.lower.vector.picked import Part, Take
from tessera.lower.vector.rules import lowers
from tessera.lower.vector.site import Site
from tessera.numerics import dtypes


@dataclass(frozen=True)
class _Along:
    """How a part is read along one dimension.

    Args:
        start: the first place, in the buffer.
        before: zeros that stand before the tile in the buffer.
        after: elements that stand behind it.
        twice: whether the tile stands there twice.
        inside: whether the only element is inside, where that is not known.
    """

    start: SSAValue | int
    before: int = 0
    after: int = 0
    twice: bool = False
    inside: SSAValue | None = None


@lowers(PartOp)
def lower_part(context: VectorContext, op: PartOp) -> None:
    """Note where a part is read; an element is read at once."""
    along = [_along(context, op, axis) for axis in range(len(op.sizes))]
    source = _held(context, context.node(op.source), along)
    element = source.element
    part = Part(op.sizes, element, source, tuple(each.start for each in along), op.step_list)
    inside: SSAValue | None = None
    for each in along:
        if each.inside is not None:
            both = inside is not None
            inside = context.writer.scalars.binary("and", inside, each.inside) if both else each.inside  # pyright: ignore
    zero = _zero(context, element)
    if not shape_of(op.result.type):
        value = part.emit(Site(context, 1, True), (Coord(0),) * len(op.sizes))
        if inside is not None:
            value = context.writer.value(ElementwiseOp("select", [inside, value, zero]))
        context.define_scalar(op.result, value)
    elif inside is None:
        context.define(op.result, part)
    else:
        condition, zeros = Uniform(op.sizes, i1, inside), Uniform(op.sizes, element, zero)
        context.define(op.result, Apply(op.sizes, element, "select", (condition, part, zeros)))


def _along(context: VectorContext, op: PartOp, axis: int) -> _Along:
    scalars, size, step = context.writer.scalars, shape_of(op.source.type)[axis], op.step_list[axis]
    count, known = op.sizes[axis], constant_starts(op)[axis]
    start = context.scalar(op.starts[axis])
    if axis in op.wrapped:
        if known is not None:
            return _Along(known, twice=known + count > size, after=context.lanes)
        return _Along(scalars.binary("mod", start, size), twice=True, after=context.lanes)
    if stays_inside(op, axis):
        return _Along(start if known is None else known)
    if count == 1:
        safe = scalars.binary("minimum", scalars.binary("maximum", start, 0), size - 1)
        return _Along(safe, inside=context.writer.value(ElementwiseOp("eq", [safe, start])))
    reach = max(abs(step) * (count - 1) + 1, context.lanes)
    near = scalars.binary("minimum", scalars.binary("maximum", start, -reach), size + reach - 1)
    first = scalars.add(near, 2 * reach)
    return _Along(first, before=2 * reach, after=2 * reach)


def _held(context: VectorContext, node: Node, along: Sequence[_Along]) -> Stored:
    """Return a buffer with a tile, and with what is to stand around it."""
    if not any(each.before or each.twice for each in along):
        return held(context, node)
    shape = [
        each.before + size * (1 + each.twice) + each.after if each.before or each.twice else size
        for each, size in zip(along, node.shape, strict=True)
    ]
    target = context.new_buffer(shape, node.element)
    zero = _zero(context, node.element)
    source = held(context, node) if any(each.twice for each in along) else node
    context.write(Uniform(tuple(shape), node.element, zero), target)
    places: list[list[int]] = [[]]
    for each, size in zip(along, node.shape, strict=True):
        firsts = [each.before, each.before + size] if each.twice else [each.before]
        places = [[*place, first] for place in places for first in firsts]
    for place in places:
        _copy(context, source, target, place, zero)
    return target


def _copy(context: VectorContext, source: Node, target: Stored, first: Sequence[int], zero: SSAValue) -> None:
    """Copy a tile to a place in a buffer; zeros are written past the end of a row's last chunk."""

    def body(site: Site, at: Coords) -> None:
        value = site.chunk(source, at)
        valid = site.valid() if any(coord.lanes for coord in at) else None
        if valid is not None:
            value = site.apply("select", [valid, value, zero])
        scalars = site.writer.scalars
        moved = [
            Coord(coord.base + by if isinstance(coord.base, int) else scalars.add(coord.base, by), coord.lanes)
            for coord, by in zip(at, first, strict=True)
        ]
        site.store(target, tuple(moved), value)

    context.nest([source], body)


def held(context: VectorContext, node: Node) -> Stored:
    """Return the buffer that holds a tile, filled if it was not."""
    if isinstance(node, Pending) and node.stored is None:
        node.finish()
    return node if isinstance(node, Stored) else context.materialise(node)


def _zero(context: VectorContext, element: Attribute) -> SSAValue:
    scalars = context.writer.scalars
    if isinstance(element, NarrowFloatType):
        return context.writer.value(CastOp(scalars.constant(0.0, element_type(dtypes.f32)), element))
    return scalars.constant(0, element)


@lowers(TakeOp)
def lower_take(context: VectorContext, op: TakeOp) -> None:
    """Note what is picked, and where from."""
    source, index = held(context, context.node(op.source)), context.node(op.index)
    context.define(op.result, Take(shape_of(op.result.type), source.element, source, index, op.axis.data))
