"""Loop nests over tiles, and the places inside them where chunks are evaluated.

A nest over a tile of shape (R, C) is a loop over rows and, inside, one over chunks of `width` elements; the
rest of a row, shorter than a chunk, is written out after the loop. Where a box may leave its tensor, the nest
exists twice: without bounds tests for boxes inside, and with them; a test chooses at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

from xdsl.ir import Attribute, SSAValue

from tessera.data import dataclass
from tessera.ir.target.arithmetic import CastOp, ElementwiseOp, IotaOp
from tessera.ir.target.memory import BufferStoreOp
from tessera.ir.target.types import fragment_of
from tessera.ir.types import NarrowFloatType, element_type
from tessera.lower.scalars import Scalars
from tessera.lower.vector.certain import Certain, certain_conditions
from tessera.lower.vector.nodes import Box, Coord, Coords, Load, Node, Stored, walk
from tessera.lower.vector.writer import Writer, chunk_layout
from tessera.numerics import dtypes

if TYPE_CHECKING:
    from tessera.lower.vector.context import VectorContext
    from tessera.lower.vector.indexed import Elements

DEEP = 40
"""Expressions deeper than this are evaluated from the operands up: Python's stack is short."""

UNROLLED_CHUNKS = 2
"""Rows of at most this many chunks are written out instead of looped over."""


@dataclass(frozen=True)
class Place:
    """Where a chunk of a box is: operands of a TIR-T load or store."""

    offsets: list[SSAValue]
    bounds: list[SSAValue]
    axes: list[int]
    checked: list[int]
    vector: int
    lanes: bool


@dataclass(frozen=True)
class End:
    """Where an axis of a tile ends in its tensor.

    Args:
        count: how many positions lie before the end.
        start: where the box starts in the tensor.
        bound: the size of the tensor.
    """

    count: SSAValue
    start: SSAValue
    bound: SSAValue


def end_of(scalars: Scalars, start: SSAValue, bound: SSAValue, size: int) -> End:
    """Return where an axis of `size` positions ends that begins at `start` of a tensor of `bound`."""
    rest = scalars.binary("maximum", scalars.binary("sub", bound, start), 0)
    return End(scalars.binary("minimum", rest, size), start, bound)


class Site:
    """A place inside a loop nest.

    Args:
        context: the lowering.
        width: elements of a chunk along the lane axis.
        interior: whether every box is known to lie inside its tensor here.
        tees: what to store when a node is computed: the node, or a conversion of it.
        certain: conditions that are known to hold for the whole tile here, if any.
    """

    def __init__(
        self,
        context: VectorContext,
        width: int,
        interior: bool,
        tees: Mapping[Node, Node] | None = None,
        certain: Certain | None = None,
    ):
        self.context = context
        self.writer: Writer = context.writer
        self.width = width
        self.interior = interior
        self.tail: int | None = None
        self.in_order = True
        self.rows_inside: Set[Elements] = frozenset()
        self._certain = certain
        self._tees = tees or {}
        self._before_ends: set[tuple[SSAValue | int, SSAValue, SSAValue]] = set()
        self._scopes: list[dict[Hashable, Any]] = [{}]
        self._depth = 0

    @property
    def kept(self) -> Collection[Node]:
        """The nodes that are stored here when they are computed."""
        return self._tees.keys()

    def scoped(self, body: Callable[[], Any]) -> Any:
        """Run `body`, and forget afterwards what it evaluated (it is in a loop or branch)."""
        self._scopes.append({})
        result = body()
        self._scopes.pop()
        return result

    def remember(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return what was computed for `key` here or in an enclosing loop, else compute it."""
        for scope in self._scopes:
            if key in scope:
                return scope[key]
        made = make()
        self._scopes[-1][key] = made
        return made

    def seed(self, node: Node, coords: Coords, value: SSAValue) -> None:
        """Say what `node` is at `coords`, evaluated in another way."""
        self._scopes[-1][id(node), coords] = value

    def evaluate(self, node: Node, coords: Coords) -> SSAValue:
        """Return `node` at `coords`: a chunk, or a scalar where no axis has lanes or all lanes agree."""
        if self._depth < DEEP:
            return self.remember((id(node), coords), lambda: self._evaluate(node, coords))
        depth, self._depth = self._depth, 0
        work = [(node, coords)]
        while work:
            part, at = work[-1]
            missing = [each for each in self._operands(part, at) if not self._known(*each)]
            if missing and not self._known(part, at):
                work += reversed(missing)
            else:
                self.remember((id(part), at), lambda part=part, at=at: self._evaluate(part, at))
                work.pop()
        self._depth = depth
        return self.remember((id(node), coords), lambda: self._evaluate(node, coords))

    def _known(self, node: Node, coords: Coords) -> bool:
        return any((id(node), coords) in scope for scope in self._scopes)

    def _operands(self, node: Node, coords: Coords) -> list[tuple[Node, Coords]]:
        """Return what evaluating a node evaluates; nothing of a stored one."""
        if node.stored is not None:
            return []
        chosen = self._chosen(node)
        return node.operands(coords) if chosen is None else [(chosen, coords)]

    def _evaluate(self, node: Node, coords: Coords) -> SSAValue:
        if node.stored is not None:
            return node.stored.emit(self, coords)
        chosen = self._chosen(node)
        self._depth += 1
        value = node.emit(self, coords) if chosen is None else self.evaluate(chosen, coords)
        self._depth -= 1
        kept = self._tees.get(node)
        if kept is not None:
            self.seed(node, coords, value)
            self.store(self.context.tee_buffer(kept), coords, value if kept is node else kept.emit(self, coords))
        return value

    def _chosen(self, node: Node) -> Node | None:
        """Return the operand that a select is known to give here."""
        return None if self._certain is None else self._certain.chosen(node)

    def chunk(self, node: Node, coords: Coords) -> SSAValue:
        """Return the chunk at `coords`, repeated from a scalar if need be; a scalar without lanes."""
        return self.splat_like(self.evaluate(node, coords), any(c.lanes for c in coords))

    def splat_like(self, value: SSAValue, lanes: bool) -> SSAValue:
        """Return the value as a chunk when `lanes`."""
        return self.writer.splat(value, self.width) if lanes else value

    def apply(self, fn: str, args: Sequence[SSAValue]) -> SSAValue:
        """Apply an elementwise function to scalars and chunks."""
        lanes = any(fragment_of(arg.type) is not None for arg in args)
        return self.writer.value(ElementwiseOp(fn, [self.splat_like(arg, lanes) for arg in args]))

    def hoist(self, node: Node, coords: Coords, inner: Coord) -> None:
        """Evaluate now, before a loop along `inner`, every part of `node` that does not depend on it."""
        work, seen = [(node, coords)], set[tuple[Node, Coords]]()
        while work:
            part, at = work.pop()
            if (part, at) in seen:
                continue
            seen.add((part, at))
            if inner in at:
                work += reversed(self._operands(part, at))
            elif not all(isinstance(c.base, int) for c in at) or part.operands(at):
                self.evaluate(part, at)

    def touch(self, root: SSAValue) -> None:
        """Note that a buffer is in use here."""
        self.context.scratch.touch(root, self.context.position_end(root))

    def index(self, base: SSAValue | int) -> SSAValue:
        """Return a coordinate as an index value."""
        return self.writer.scalars.constant(base) if isinstance(base, int) else base

    def zero(self, element: Attribute) -> SSAValue:
        """Return zero of an element type (of a narrow float by way of f32)."""
        if isinstance(element, NarrowFloatType):
            wide = self.writer.scalars.constant(0.0, element_type(dtypes.f32))
            return self.writer.value(CastOp(wide, element))
        return self.writer.scalars.constant(0, element)

    def chunk_of_zeros(self, element: Attribute) -> SSAValue:
        """Return a chunk of zeros."""
        return self.writer.splat(self.zero(element), self.width)

    def valid(self) -> SSAValue | None:
        """Return which lanes lie inside the tile, None when all do."""
        if self.tail is None:
            return None
        tail, i32 = self.tail, element_type(dtypes.i32)

        def make() -> SSAValue:
            lanes = self.writer.value(IotaOp(0, i32, chunk_layout(self.width)))
            return self.apply("lt", [lanes, self.writer.scalars.constant(tail, i32)])

        return self.remember(("valid", self.width, tail), make)

    def masked(self, mask: SSAValue | None, lanes: bool) -> SSAValue | None:
        """Return `mask` without the lanes past the tile's end."""
        valid = self.valid() if lanes else None
        if mask is None or valid is None:
            return self.splat_like(mask, lanes) if mask is not None else valid
        return self.apply("and", [mask, valid])

    def place(self, box: Box, coords: Coords) -> Place:
        """Return where the chunk at `coords` of a box is in its tensor."""
        scalars = self.writer.scalars
        offsets, bounds = list(box.offsets), list(box.bounds)
        checked = [] if self.interior else list(box.unsafe)
        axes: list[int] = []
        vector = 1
        for coord, axis in zip(coords, box.kept, strict=True):
            offsets[axis] = scalars.add(offsets[axis], coord.base)
            if axis in checked and (coord.base, box.offsets[axis], box.bounds[axis]) in self._before_ends:
                checked.remove(axis)
            if not coord.lanes:
                continue
            axes = [axis]
            vector = self.width if box.unit[axis] else 1
            if self.tail is not None:
                end = scalars.add(box.offsets[axis], box.sizes[axis])
                bounds[axis] = scalars.binary("minimum", bounds[axis], end) if axis in checked else end
                checked = sorted({*checked, axis})
        return Place(offsets, bounds, axes, checked, vector, bool(axes))

    def element_offsets(
        self, indices: Sequence[Node], strides: Sequence[SSAValue], mask: Node | None, coords: Coords
    ) -> tuple[SSAValue, SSAValue | None]:
        """Return the offsets (in elements) of single elements, and the mask of those that count."""
        lanes = any(c.lanes for c in coords)
        total: SSAValue | None = None
        for node, stride in zip(indices, strides, strict=True):
            part = self.apply("mul", [self.evaluate(self.context.index_node(node), coords), stride])
            total = part if total is None else self.apply("add", [total, part])
        assert total is not None
        given = None if mask is None else self.evaluate(mask, coords)
        return self.splat_like(total, lanes), self.masked(given, lanes)

    def store(self, target: Stored, coords: Coords, value: SSAValue) -> None:
        """Write the chunk or element at `coords` of a buffer.

        A row's last chunk is written whole: to padding, or to elements of the next row that are written after it.
        """
        self.touch(target.root)
        lanes = [axis for axis, coord in enumerate(coords) if coord.lanes]
        contiguous = all(target.type.strides[axis] == 1 for axis in lanes)
        offsets = [self.index(coord.base) for coord in coords]
        padded = self.in_order or self.tail is None or target.type.pitch.data % self.width == 0
        vector = self.width if lanes and contiguous and padded else 1
        chunk = self.splat_like(value, bool(lanes))
        self.writer.insert(BufferStoreOp(chunk, target.buffer, offsets, lanes, vector))

    def each(self, count: SSAValue | int, body: Callable[[SSAValue | int], None]) -> None:
        """Loop over `count` positions."""
        if isinstance(count, int) and count == 1:
            body(0)
            return
        self.span(count, 1, body)

    def lie_before(self, places: Iterable[SSAValue], end: End) -> None:
        """Note that places lie before an end."""
        self._before_ends.update((place, end.start, end.bound) for place in places)

    def span(self, stop: SSAValue | int, step: int, body: Callable[[SSAValue], None]) -> None:
        """Loop over positions before one, `step` apart."""

        def iteration(at: SSAValue, _carried: Sequence[SSAValue]) -> Sequence[SSAValue]:
            self.scoped(lambda: body(at))
            return []

        self.writer.loop(0, stop, step, [], iteration)

    def each_before(self, end: End, body: Callable[[SSAValue], None]) -> None:
        """Loop over the positions before an end."""

        def position(at: SSAValue) -> None:
            self.lie_before([at], end)
            body(at)

        self.span(end.count, 1, position)

    def chunks_before(self, end: End, body: Callable[[Coord], None]) -> None:
        """Loop over the chunks before an end, the one that it cuts after the loop."""
        scalars = self.writer.scalars
        full = scalars.binary("sub", end.count, scalars.binary("mod", end.count, self.width))

        def whole(at: SSAValue) -> None:
            self.lie_before([at], end)
            body(Coord(at, lanes=True))

        def rest() -> Sequence[SSAValue]:
            self.scoped(lambda: body(Coord(full, lanes=True)))
            return []

        self.span(full, self.width, whole)
        self.writer.branch(scalars.binary("lt", full, end.count), rest)

    def chunks(self, size: int, body: Callable[[Coord], None]) -> None:
        """Loop over the chunks of an axis of `size` elements, the incomplete last one after the loop."""
        if self.width == 1:
            self.each(size, lambda at: body(Coord(at)))
            return
        full, rest = divmod(size, self.width)
        if full <= UNROLLED_CHUNKS:
            for number in range(full):
                body(Coord(number * self.width, lanes=True))
        else:
            self.span(full * self.width, self.width, lambda at: body(Coord(at, lanes=True)))
        if rest:
            self.tail = rest
            self.scoped(lambda: body(Coord(full * self.width, lanes=True)))
            self.tail = None


def lane_axis(shape: Sequence[int]) -> int:
    """Return the axis that chunks run along: the last one longer than 1."""
    longer = [axis for axis, size in enumerate(shape) if size > 1]
    return longer[-1] if longer else len(shape) - 1


def chunk_width(size: int, lanes: int) -> int:
    """Return how many elements of an axis of `size` one chunk holds, for vectors of `lanes` elements."""
    return min(lanes, 1 << (size - 1).bit_length())


def versions(
    context: VectorContext,
    width: int,
    roots: Sequence[Node],
    nest: Callable[[Site], Sequence[SSAValue]],
    boxes: Sequence[Box] = (),
) -> list[SSAValue]:
    """Write `nest` once, or under a test for each case: when a box may leave its tensor, and when masks hold for all.

    Nodes that want storing are stored by the nest when it computes each of their elements once and in order,
    and before it otherwise. What not all versions compute, none stores.
    """
    tees = context.prepare(roots)
    loads = [node.box for root in roots for node, _ in walk(root) if isinstance(node, Load)]
    condition = context.interior_condition([*loads, *boxes])
    certain = certain_conditions(context, roots)
    if certain is not None:
        computed = certain.computed(roots)
        tees = {node: kept for node, kept in tees.items() if node in computed}

    def written(interior: bool, known: Certain | None = None) -> Sequence[SSAValue]:
        return nest(Site(context, width, interior, tees, known))

    def inside() -> Sequence[SSAValue]:
        if certain is None:
            return written(True)
        return context.writer.branch(certain.test, lambda: written(True, certain), lambda: written(True))

    results = list(inside()) if condition is None else context.writer.branch(condition, inside, lambda: written(False))
    context.finish_tees(tees.values())
    return results
