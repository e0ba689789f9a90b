"""Elements at index tiles: one by one, or whole chunks where the index tiles name neighbours.

`x[rows, :]` has one row for all lanes of a chunk, and columns that count up: the chunk is loaded like one of a slice,
and the row is tested once instead of in each lane.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set

from xdsl.ir import SSAValue

from tessera.data import dataclass
from tessera.ir.target.arithmetic import constant_value
from tessera.ir.target.memory import GatherOp, LoadOp
from tessera.ir.types import dtype_of
from tessera.lower.vector.inside import U64
from tessera.lower.vector.nodes import (
    SCATTERED_COST,
    Apply,
    Convert,
    Coord,
    Coords,
    Iota,
    Node,
    Remap,
    Resource,
    Uniform,
)
from tessera.lower.vector.site import Place, Site, lane_axis
from tessera.lower.vector.writer import chunk_type

MOST_PARTS = 32
"""Indices of more parts than this are taken one by one."""


@dataclass(frozen=True, eq=False)
class Elements:
    """Elements of a tensor or buffer at index tiles.

    Args:
        pointer: its address.
        strides: its strides, in elements.
        bounds: its size in dimensions where an index may lie outside, None in others.
        indices: one tile of integers for each dimension.
        given: which elements count, where that is given.
        mask: `given`, and which elements lie inside the tensor.
    """

    pointer: SSAValue
    strides: tuple[SSAValue, ...]
    bounds: tuple[SSAValue | None, ...]
    indices: tuple[Node, ...]
    given: Node | None
    mask: Node | None

    def run(self, coords: Coords) -> int | None:
        """Return the dimension along which the lanes of a chunk are neighbours in memory, None where they are not."""
        found = None
        for axis, node in enumerate(self.indices):
            if agrees(node, coords):
                continue
            if found is not None or constant_value(self.strides[axis]) != 1 or not _counts(node, coords):
                return None
            found = axis
        return found

    def by_chunks(self, shape: Sequence[int]) -> bool:
        """Return whether a nest over a tile of `shape` takes chunks of neighbours: of indices, the first."""
        lanes = lane_axis(shape)
        if shape[lanes] == 1:  # a chunk of one element has no lanes
            return False
        return self.run(tuple(Coord(0, axis == lanes) for axis in range(len(shape)))) is not None

    def used(self, coords: Coords) -> list[Node]:
        """Return the tiles that an access at `coords` evaluates."""
        mask = self.mask if self.run(coords) is None else self.given
        return [*self.indices] if mask is None else [*self.indices, mask]

    def place(self, site: Site, coords: Coords, run: int) -> Place:
        """Return where a chunk of neighbours along dimension `run` is."""
        scalars = site.writer.scalars
        first = tuple(Coord(coord.base) for coord in coords)
        offsets = [site.evaluate(site.context.index_node(node), first) for node in self.indices]
        bounds = [scalars.constant(0) if size is None else size for size in self.bounds]
        checked = set(self._tested())
        if self in site.rows_inside:
            checked &= {run}
        if run in checked:
            # Far away, what is added to an index would wrap around: in 64 bits here, in its own dtype above the limit.
            limit = 1 << _counted_bits(self.indices[run], coords) - 1
            if limit >> 63 == 0:
                bounds[run] = scalars.binary("minimum", bounds[run], limit)
            near = scalars.binary("maximum", offsets[run], -site.width)
            offsets[run] = scalars.binary("minimum", near, bounds[run])
        if site.tail is not None:
            end = scalars.add(offsets[run], site.tail)
            bounds[run] = scalars.binary("minimum", bounds[run], end) if run in checked else end
            checked.add(run)
        return Place(offsets, bounds, [run], sorted(checked), site.width, True)

    def _tested(self) -> list[int]:
        return [axis for axis, size in enumerate(self.bounds) if size is not None]

    def row_inside(self, site: Site, coords: Coords) -> SSAValue | None:
        """Return whether what the lanes of a chunk have in common is inside the tensor, None where that is known."""
        scalars, run, total = site.writer.scalars, self.run(coords), None
        for axis in self._tested() if run is not None else []:
            size = self.bounds[axis]
            if axis == run or size is None:
                continue
            place = site.evaluate(site.context.index_node(self.indices[axis]), coords)
            inside = scalars.binary("lt", scalars.cast(place, U64), scalars.cast(size, U64))
            total = inside if total is None else scalars.binary("and", total, inside)
        return total

    def given_at(self, site: Site, coords: Coords) -> SSAValue | None:
        """Return the given mask at a chunk."""
        return None if self.given is None else site.chunk(self.given, coords)


@dataclass(eq=False)
class Gather(Node):
    """Elements of a tensor or buffer at index tiles; outside of it, or where the mask is false, `fill` (zero)."""

    memory: Resource
    elements: Elements
    fill: SSAValue | None = None

    def operands(self, coords: Coords) -> list[tuple[Node, Coords]]:
        """Indices and mask at the same place."""
        return [(node, coords) for node in self.elements.used(coords)]

    @property
    def aligned(self) -> bool:
        """Not where only the first index of a chunk is evaluated."""
        return not self.elements.by_chunks(self.shape)

    @property
    def cost(self) -> int:
        """One access per element, or per chunk."""
        return 1 if self.elements.by_chunks(self.shape) else SCATTERED_COST

    @property
    def resources(self) -> tuple[Resource, ...]:
        """The tensor or buffer."""
        return (self.memory,)

    def emit(self, site: Site, coords: Coords) -> SSAValue:
        """Load the elements; lanes past the tile's end are masked off, as their indices mean nothing."""
        at, run = self.elements, self.elements.run(coords)
        if run is None:
            offsets, mask = site.element_offsets(at.indices, at.strides, at.mask, coords)
            return site.writer.value(GatherOp(at.pointer, offsets, mask, self.fill))
        place = at.place(site, coords, run)
        return site.writer.value(
            LoadOp(
                at.pointer,
                place.offsets,
                at.strides,
                place.bounds,
                chunk_type(self.element, site.width),
                place.axes,
                place.checked,
                place.vector,
                at.given_at(site, coords),
                self.fill,
            )
        )


def by_rows(
    site: Site, size: int, roots: Sequence[Node], coords: Coords, write: Callable[[], Sequence[SSAValue]]
) -> list[SSAValue]:
    """Write a loop over chunks: twice where rows at run-time indices may lie outside, and a test before it chooses.

    Args:
        site: where it goes.
        size: elements of the axis that the chunks are parts of.
        roots: what the loop evaluates.
        coords: where; the place along the loop does not matter.
        write: writes the loop, and returns what it computes.
    """
    test, rows = _rows_inside(site, roots, coords) if size > site.width > 1 else (None, set[Elements]())
    if test is None:
        return list(write())

    def written(inside: Set[Elements]) -> Sequence[SSAValue]:
        site.rows_inside = inside
        results = site.scoped(write)
        site.rows_inside = frozenset()
        return results

    return site.writer.branch(test, lambda: written(rows), lambda: written(frozenset()))


def _rows_inside(site: Site, roots: Sequence[Node], coords: Coords) -> tuple[SSAValue | None, set[Elements]]:
    """Return whether rows that chunks are taken of are inside (None if none is in question), and of which elements."""
    test: SSAValue | None = None
    found, seen, work = set[Elements](), set[tuple[Node, Coords]](), [(root, coords) for root in roots]
    while work:
        part, at = work.pop()
        if (part, at) in seen or part.stored is not None:
            continue
        seen.add((part, at))
        work += part.operands(at)
        inside = part.elements.row_inside(site, at) if isinstance(part, Gather) else None
        if inside is not None:
            assert isinstance(part, Gather)
            found.add(part.elements)
            test = inside if test is None else site.writer.scalars.binary("and", test, inside)
    return test, found


def agrees(node: Node, coords: Coords) -> bool:
    """Return whether all lanes of a tile at `coords` are known to agree, so that it is evaluated as a scalar."""
    work = [(node, coords)]
    for _ in range(MOST_PARTS):
        if not work:
            return True
        part, at = work.pop()
        if isinstance(part, Uniform) or not any(coord.lanes for coord in at):
            continue
        if part.stored is not None or not isinstance(part, Apply | Convert | Remap):
            return False
        work += part.operands(at)
    return not work


def _counts(node: Node, coords: Coords) -> bool:
    """Return whether the lanes of a tile at `coords` count up by one, until they wrap around."""
    return _counted_bits(node, coords) > 0


def _counted_bits(node: Node, coords: Coords) -> int:
    """Return the bits of the narrowest signed integers in which the lanes of a tile count up by one; 0 if not known."""
    narrowest = 64
    for _ in range(MOST_PARTS):
        dtype = dtype_of(node.element)
        if dtype.kind != "int" or not any(coord.lanes for coord in coords):
            return 0
        narrowest = min(narrowest, dtype.bits)
        if isinstance(node, Iota):
            return narrowest if node.shape[0] <= 1 << dtype.bits - 1 else 0
        if not isinstance(node, Apply | Convert | Remap):
            return 0
        operands = node.operands(coords)
        if isinstance(node, Apply) and node.fn in ("add", "sub"):
            steady = [i for i, (part, at) in enumerate(operands) if agrees(part, at)]
            if not steady or (node.fn == "sub" and steady == [0]):
                return 0
            operands = [operands[1 - steady[-1]]]
        elif isinstance(node, Convert):
            source = dtype_of(node.source.element)
            if source.kind != "int" or source.bits > dtype.bits:
                return 0
        elif isinstance(node, Apply):
            return 0
        ((node, coords),) = operands
    return 0
