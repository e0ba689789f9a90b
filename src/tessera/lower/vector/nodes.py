"""Tiles as expressions: how a tile is computed, evaluated chunk by chunk inside the loop of a consumer.

A node stands for a whole tile. `evaluate` on a `Site` (a place inside a loop nest) gives the chunk, or the
scalar, at some coordinates. A node that has been stored reads its buffer from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from math import prod
from typing import TYPE_CHECKING

from xdsl.ir import Attribute, SSAValue

from tessera.data import dataclass
from tessera.ir.target.arithmetic import BitcastOp, CastOp, ElementwiseOp, IotaOp
from tessera.ir.target.memory import BufferLoadOp, LoadOp
from tessera.ir.target.types import BufferType
from tessera.ir.types import dtype_of, element_type, i1, index
from tessera.lower.philox import philox_rounds
from tessera.lower.vector.writer import chunk_layout, chunk_type
from tessera.numerics import dtypes
from tessera.numerics.functions import record_of

if TYPE_CHECKING:
    from tessera.lower.vector.site import Site

Resource = tuple[str, object]
U32 = element_type(dtypes.u32)

SCATTERED_COST = 16
NARROW_COST = 6


@dataclass(frozen=True, slots=True)
class Coord:
    """A place along one axis: `base`, or with `lanes` the whole chunk that starts there."""

    base: SSAValue | int
    lanes: bool = False


Coords = tuple[Coord, ...]


@dataclass(eq=False)
class Node:
    """A tile as an expression.

    Args:
        shape: the tile's shape.
        element: its element type.
        stored: the buffer that holds it, once it has been stored.
        wanted: whether it should be stored the first time it is computed, because it is used again.
    """

    shape: tuple[int, ...]
    element: Attribute
    stored: Stored | None = field(default=None, init=False)
    wanted: bool = field(default=False, init=False)

    def operands(self, coords: Coords) -> list[tuple[Node, Coords]]:
        """Return the nodes this one is computed from, each at the coordinates it is needed at."""
        return []

    @property
    def aligned(self) -> bool:
        """Whether each element needs exactly the same element, in row-major order, of the operands."""
        return True

    @property
    def cost(self) -> int:
        """Vector instructions for one chunk, without the operands."""
        return 1

    @property
    def resources(self) -> tuple[Resource, ...]:
        """The memory it reads itself."""
        return ()

    def emit(self, site: Site, coords: Coords) -> SSAValue:
        """Write the code that computes the element or chunk at `coords`."""
        raise NotImplementedError


@dataclass(eq=False)
class Uniform(Node):
    """One scalar in every element."""

    value: SSAValue

    @property
    def cost(self) -> int:
        """Nothing: the scalar is there."""
        return 0

    def emit(self, site: Site, coords: Coords) -> SSAValue:
        """Give the scalar; the user repeats it where it needs a chunk."""
        return self.value


@dataclass(eq=False)
class Iota(Node):
    """The numbers 0, 1, … along the only axis."""

    def emit(self, site: Site, coords: Coords) -> SSAValue:
        """Add the chunk's start to the lane numbers."""
        scalars = site.writer.scalars
        (coord,) = coords
        base = coord.base
        start = scalars.constant(base, self.element) if isinstance(base, int) else scalars.cast(base, self.element)
        if not coord.lanes:
            return start
        lanes = site.writer.value(IotaOp(0, self.element, chunk_layout(site.width)))
        if base == 0:
            return lanes
        return site.writer.value(ElementwiseOp("add", [site.writer.splat(start, site.width), lanes]))


@dataclass(eq=False)
class Apply(Node):
    """An elementwise function of tiles of one shape."""

    fn: str
    args: tuple[Node, ...]

    def operands(self, coords: Coords) -> list[tuple[Node, Coords]]:
        """Every operand at the same place."""
        return [(arg, coords) for arg in self.args]

    @property
    def cost(self) -> int:
        """From the table; narrow floats also pay for their conversions."""
        dtype = dtype_of(self.element)
        return record_of(self.fn).cost + (NARROW_COST if dtype.is_float and dtype.bits < 32 else 0)

    def emit(self, site: Site, coords: Coords) -> SSAValue:
        """Apply the function; scalar operands are repeated only when another one is a chunk."""
        return site.apply(self.fn, [site.evaluate(arg, coords) for arg in self.args])


@dataclass(eq=False)
class Convert(Node):
    """A change of dtype."""

    source: Node
    saturate: bool = False

    def operands(self, coords: Coords) -> list[tuple[Node, Coords]]:
        """The source at the same place."""
        return [(self.source, coords)]

    @property
    def cost(self) -> int:
        """Rounding to a narrow float takes several integer instructions."""
        dtype = dtype_of(self.element)
        return NARROW_COST if dtype.is_float and dtype.bits < 32 else 2

    def emit(self, site: Site, coords: Coords) -> SSAValue:
        """Convert the chunk or scalar."""
        return site.writer.value(CastOp(site.evaluate(self.source, coords), self.element, self.saturate))


@dataclass(eq=False)
class Reinterpret(Node):
    """The bits of a tile as another dtype of the same width."""

    source: Node

    def operands(self, coords: Coords) -> list[tuple[Node, Coords]]:
        """The source at the same place."""
        return [(self.source, coords)]

    @property
    def cost(self) -> int:
        """Nothing: the bits stay in their registers."""
        return 0

    def emit(self, site: Site, coords: Coords) -> SSAValue:
        """Take the bits of the chunk or scalar for the other dtype."""
        return site.writer.value(BitcastOp(site.evaluate(self.source, coords), self.element))


@dataclass(eq=False)
class Remap(Node):
    """Another view of a tile's axes: broadcast, transpose, added or dropped axes of size 1.

    `take[i]` is the axis of this tile that runs along axis `i` of the source, None for position 0.
    """

    source: Node
    take: tuple[int | None, ...]

    def operands(self, coords: Coords) -> list[tuple[Node, Coords]]:
        """The source at the mapped place."""
        return [(self.source, tuple(Coord(0) if axis is None else coords[axis] for axis in self.take))]

    @property
    def aligned(self) -> bool:
        """Whether elements keep their number and order."""
        axes = [axis for axis in self.take if axis is not None]
        return axes == sorted(axes) and prod(self.shape) == prod(self.source.shape)

    @property
    def cost(self) -> int:
        """Nothing by itself."""
        return 0

    def emit(self, site: Site, coords: Coords) -> SSAValue:
        """Evaluate the source elsewhere."""
        ((source, mapped),) = self.operands(coords)
        return site.evaluate(source, mapped)


@dataclass(frozen=True)
class Box:
    """A box of a global tensor in machine terms.

    Args:
        arg: position of the tensor among the kernel's arguments.
        memory: position of the first argument that is the same memory.
        pointer: its base address.
        starts: where the box starts, per tensor dimension.
        offsets: the same, moved towards the tensor where it is too far away for arithmetic.
        strides: strides of the tensor, in elements.
        bounds: sizes of the tensor.
        sizes: sizes of the box.
        kept: the tensor dimension of each tile axis.
        unsafe: dimensions in which the box may leave the tensor.
        unit: whether each dimension is known to have stride 1.
        forward: dimensions in which the box is known not to start before the tensor.
    """

    arg: int
    memory: int
    pointer: SSAValue
    starts: tuple[SSAValue, ...]
    offsets: tuple[SSAValue, ...]
    strides: tuple[SSAValue, ...]
    bounds: tuple[SSAValue, ...]
    sizes: tuple[int, ...]
    kept: tuple[int, ...]
    unsafe: tuple[int, ...]
    unit: tuple[bool, ...]
    forward: tuple[int, ...] = ()

    def same_place(self, other: Box) -> bool:
        """Return whether both are known to be one and the same part of a tensor."""
        return (self.arg, self.starts, self.sizes, self.kept) == (
            other.arg,
            other.starts,
            other.sizes,
            other.kept,
        )


@dataclass(eq=False)
class Load(Node):
    """A box of a tensor; outside the tensor, or where `mask` is false, it is `fill` (zero)."""

    box: Box
    mask: Node | None = None
    fill: SSAValue | None = None

    def operands(self, coords: Coords) -> list[tuple[Node, Coords]]:
        """The mask at the same place."""
        return [] if self.mask is None else [(self.mask, coords)]

    @property
    def cost(self) -> int:
        """One access where the last axis is contiguous, else one per element."""
        return 1 if not self.box.kept or self.box.unit[self.box.kept[-1]] else SCATTERED_COST

    @property
    def resources(self) -> tuple[Resource, ...]:
        """The tensor."""
        return (("tensor", self.box.memory),)

    def emit(self, site: Site, coords: Coords) -> SSAValue:
        """Load the chunk or element."""
        place = site.place(self.box, coords)
        mask = None if self.mask is None else site.splat_like(site.evaluate(self.mask, coords), place.lanes)
        return site.writer.value(
            LoadOp(
                self.box.pointer,
                place.offsets,
                list(self.box.strides),
                place.bounds,
                chunk_type(self.element, site.width if place.lanes else 1),
                place.axes,
                place.checked,
                place.vector,
                mask,
                self.fill,
            )
        )


@dataclass(eq=False)
class Philox:
    """The four random words of one seed and counter tile.

    Args:
        key: the seed's words.
        counter: the counters.
        words: those of the four that are used.
    """

    key: tuple[SSAValue, SSAValue]
    counter: Node
    words: list[Node] = field(default_factory=list[Node], init=False)


@dataclass(eq=False)
class RandomWord(Node):
    """One of the words that Philox gives for a counter."""

    group: Philox
    number: int

    def operands(self, coords: Coords) -> list[tuple[Node, Coords]]:
        """The counter at the same place."""
        return [(self.group.counter, coords)]

    @property
    def cost(self) -> int:
        """Ten rounds."""
        return 120

    def emit(self, site: Site, coords: Coords) -> SSAValue:
        """Run the rounds; the other words of this chunk come out of the same run."""
        return site.remember((id(self.group), coords), lambda: self._rounds(site, coords))[self.number]

    def _rounds(self, site: Site, coords: Coords) -> Sequence[SSAValue]:
        writer, scalars = site.writer, site.writer.scalars
        counter = site.evaluate(self.group.counter, coords)
        shift = scalars.constant(32, element_type(dtypes.u64))
        wide = writer.value(CastOp(counter, element_type(dtypes.u64)))
        low = writer.value(CastOp(wide, U32))
        high = writer.value(CastOp(site.apply("shr", [wide, shift]), U32))
        zero = scalars.constant(0, U32)
        return philox_rounds(
            (low, high, zero, zero),
            self.group.key,
            lambda v: scalars.constant(v, U32),
            lambda fn, a, b: site.apply(fn, [a, b]),
        )


@dataclass(eq=False)
class Stored(Node):
    """A tile that is in a scratch (or shared) buffer. `root` is the allocation it is a view of."""

    buffer: SSAValue
    root: SSAValue

    @property
    def type(self) -> BufferType:
        """The buffer's type."""
        assert isinstance(self.buffer.type, BufferType)
        return self.buffer.type

    @property
    def now(self) -> Stored:
        """Where the tile is now: in a copy, where the buffer is written again."""
        return self if self.stored is None else self.stored.now

    @property
    def resources(self) -> tuple[Resource, ...]:
        """The buffer."""
        return (("buffer", self.root),)

    def emit(self, site: Site, coords: Coords) -> SSAValue:
        """Read the chunk or element; rows are padded, so that a whole chunk can be read at a row's end."""
        if self.stored is not None:
            return self.now.emit(site, coords)
        site.touch(self.root)
        lanes = [axis for axis, coord in enumerate(coords) if coord.lanes]
        contiguous = all(self.type.strides[axis] == 1 for axis in lanes)
        type_ = chunk_type(self.element, site.width if lanes else 1)
        fill = None if contiguous else site.zero(self.element)
        offsets = [site.index(coord.base) for coord in coords]
        vector = site.width if lanes and contiguous else 1
        return site.writer.value(BufferLoadOp(self.buffer, type_, offsets, lanes, vector, fill))


@dataclass(eq=False)
class Pending(Node):
    """A product that is computed when it is used: all of it, or some rows at a time in the loop that stores it.

    Args:
        sums: the buffer for it, of which a few rows are enough where it begins at zero.
        rows: how many rows make a strip; they divide those of the tile.
        used: the memory that is read.
        compute: writes the product of all rows.
        compute_strip: writes that of the strip that begins at a row, and returns the row of the tile that is first in
            `sums`.
    """

    sums: Stored
    rows: int
    used: tuple[Resource, ...]
    compute: Callable[[], None]
    compute_strip: Callable[[SSAValue], SSAValue]
    first: SSAValue | None = field(default=None, init=False)

    @property
    def resources(self) -> tuple[Resource, ...]:
        """Operands and sums."""
        return self.used

    def emit(self, site: Site, coords: Coords) -> SSAValue:
        """Read the sums of the strip that was computed last."""
        assert self.first is not None
        row, column = coords
        place = site.writer.scalars.binary("sub", site.index(row.base), self.first)
        return self.sums.emit(site, (Coord(place), column))

    def finish(self) -> None:
        """Compute all of it; it is read from the sums from now on."""
        self.compute()
        self.stored = self.sums


def pending(roots: Iterable[Node]) -> list[Pending]:
    """Return the products that evaluating `roots` waits for."""
    return list(dict.fromkeys(n for root in roots for n, _ in walk(root) if isinstance(n, Pending)))


def walk(node: Node, aligned: bool = True) -> Iterator[tuple[Node, bool]]:
    """Yield, once each, the nodes that evaluating `node` computes or reads, and whether reached aligned."""
    seen: set[tuple[int, bool]] = set()
    work = [(node, aligned)]
    while work:
        current, straight = work.pop()
        if current.stored is not None:
            current = current.stored
        if (id(current), straight) in seen:
            continue
        seen.add((id(current), straight))
        yield current, straight
        origin = (Coord(0),) * len(current.shape)
        for child, _ in current.operands(origin):
            work.append((child, straight and current.aligned))


def costs_more(node: Node, limit: int) -> bool:
    """Return whether evaluating one chunk takes more than so many vector instructions."""
    total, seen = 0, set[int]()
    for part, _ in walk(node):
        if id(part) not in seen:
            seen.add(id(part))
            total += part.cost
            if total > limit:
                return True
    return False


def reads(node: Node) -> set[Resource]:
    """Return the memory that evaluating the node would read."""
    return {resource for n, _ in walk(node) for resource in n.resources}


def bool_of(node: Node) -> Node:
    """Return the tile as a condition: what is not zero."""
    return node if node.element == i1 else Convert(node.shape, i1, node)


def index_of(node: Node) -> Node:
    """Return an integer tile as indices."""
    return node if node.element == index else Convert(node.shape, index, node)
