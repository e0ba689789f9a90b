"""Parts of tiles that lie in buffers: boxes with a step in each dimension, and elements at index tiles."""

from __future__ import annotations

from xdsl.ir import SSAValue

from tessera.data import dataclass
from tessera.ir.target.arithmetic import CastOp, IotaOp, RelayoutOp
from tessera.ir.target.memory import BufferGatherOp
from tessera.ir.types import element_type, index
from tessera.lower.vector.indexed import agrees
from tessera.lower.vector.nodes import SCATTERED_COST, Coord, Coords, Node, Stored
from tessera.lower.vector.site import Site, lane_axis
from tessera.lower.vector.writer import chunk_layout
from tessera.numerics import dtypes

U64 = element_type(dtypes.u64)


def _lanes(coords: Coords) -> int | None:
    return next((axis for axis, coord in enumerate(coords) if coord.lanes), None)


def _along(site: Site, start: SSAValue | int, step: int, base: SSAValue | int) -> SSAValue | int:
    """Return `start + step * base`, as a number where it is known."""
    if isinstance(start, int) and isinstance(base, int):
        return start + step * base
    scalars = site.writer.scalars
    return scalars.binary("add", start, scalars.binary("mul", base, step))


def _counted(site: Site, base: SSAValue | int, step: int = 1) -> SSAValue:
    """Return `base`, `base + step`, … as a chunk of indices."""
    numbers = site.writer.value(IotaOp(0, index, chunk_layout(site.width)))
    steps = site.apply("mul", [numbers, site.index(step)]) if step != 1 else numbers
    return site.apply("add", [steps, site.index(base)])


def _gathered(site: Site, source: Stored, places: list[SSAValue], inside: SSAValue | None = None) -> SSAValue:
    """Return the elements of a buffer at places along each dimension; any where they are not `inside`."""
    source = source.now
    total: SSAValue | None = None
    for place, stride in zip(places, source.type.strides, strict=True):
        part = place if stride == 1 else site.apply("mul", [place, site.index(stride)])
        total = part if total is None else site.apply("add", [total, part])
    assert total is not None
    if inside is not None:
        total = site.apply("select", [inside, total, site.index(0)])
    site.touch(source.root)
    return site.writer.value(BufferGatherOp(source.buffer, total))


@dataclass(eq=False)
class Part(Node):
    """A box of a tile that lies in a buffer: element `i` along a dimension is at `start + step * i`, which is inside.

    Args:
        source: the tile.
        starts: the first place along each dimension.
        steps: the step along each dimension.
    """

    source: Stored
    starts: tuple[SSAValue | int, ...]
    steps: tuple[int, ...]

    def operands(self, coords: Coords) -> list[tuple[Node, Coords]]:
        """The buffer, which is read elsewhere."""
        return [(self.source, (Coord(0),) * len(self.steps))]

    @property
    def aligned(self) -> bool:
        """Not: elements come from elsewhere."""
        return False

    @property
    def cost(self) -> int:
        """One access, or one for each element."""
        return 1 if self.steps[lane_axis(self.shape)] in (1, -1) else SCATTERED_COST

    def emit(self, site: Site, coords: Coords) -> SSAValue:
        """Read neighbours, in their order or backwards, or single elements."""
        lanes, scalars = _lanes(coords), site.writer.scalars
        rows = zip(self.starts, self.steps, coords, strict=True)
        at = [Coord(_along(site, start, step, coord.base), coord.lanes) for start, step, coord in rows]
        if lanes is None or self.steps[lanes] == 1:
            return site.evaluate(self.source, tuple(at))
        step, first = self.steps[lanes], at[lanes].base
        if step == -1 and site.tail is None:
            at[lanes] = Coord(_along(site, first, 1, 1 - site.width), lanes=True)
            chunk = site.chunk(self.source, tuple(at))
            order = range(site.width - 1, -1, -1)
            return site.writer.value(RelayoutOp(chunk, chunk_layout(site.width), order))
        places = [site.index(coord.base) for coord in at]
        places[lanes] = _counted(site, first, step)
        if site.tail is not None:
            last = scalars.constant(self.source.shape[lanes] - 1)
            above = site.apply("maximum", [places[lanes], site.index(0)])
            places[lanes] = site.apply("minimum", [above, last])
        return _gathered(site, self.source, places)


@dataclass(eq=False)
class Take(Node):
    """Elements of a tile that lies in a buffer, at places along one dimension that another tile names, else zero.

    Args:
        source: the tile.
        index: integers.
        axis: the dimension.
    """

    source: Stored
    index: Node
    axis: int

    def operands(self, coords: Coords) -> list[tuple[Node, Coords]]:
        """The index at the same place, and the buffer, which is read elsewhere."""
        return [(self.index, coords), (self.source, (Coord(0),) * len(self.shape))]

    @property
    def aligned(self) -> bool:
        """Not: elements come from elsewhere."""
        return False

    @property
    def cost(self) -> int:
        """One access for each element."""
        return SCATTERED_COST

    def emit(self, site: Site, coords: Coords) -> SSAValue:
        """Read single elements, or neighbours where all lanes of a chunk have one index."""
        common = agrees(self.index, coords)
        own = tuple(Coord(coord.base) for coord in coords) if common else coords
        index_ = site.evaluate(site.context.index_node(self.index), own)
        size = site.writer.scalars.constant(self.source.shape[self.axis], U64)
        inside = site.apply("lt", [site.writer.value(CastOp(index_, U64)), size])
        if common:
            safe = site.apply("select", [inside, index_, site.index(0)])
            at = tuple(Coord(safe) if axis == self.axis else coord for axis, coord in enumerate(coords))
            values = site.evaluate(self.source, at)
        else:
            lanes = _lanes(coords)
            places = [
                _counted(site, coord.base) if axis == lanes else site.index(coord.base)
                for axis, coord in enumerate(coords)
            ]
            places[self.axis] = index_
            inside = site.masked(inside, lanes is not None) or inside
            values = _gathered(site, self.source, places, inside)
        return site.apply("select", [inside, values, site.zero(self.element)])
