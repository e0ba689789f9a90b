"""Operands of products in scratch memory, in the form the micro-kernels read.

A left operand becomes rows, or columns of groups where it is stored by columns; a right one panels
`[n / width][k][n % width]` of a few vectors' width. Where an operand is a box of a tensor that may leave it, only the
part inside is packed and multiplied: the products with what lies outside are zero. Nothing is tested there except at
the last chunk, row and group of each axis.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from xdsl.ir import Attribute, SSAValue

from tessera.data import dataclass
from tessera.ir.target.arithmetic import ElementwiseOp, TransposeChunksOp
from tessera.ir.target.memory import ViewOp
from tessera.ir.target.product import GroupChunksOp
from tessera.ir.target.types import BufferType
from tessera.ir.types import element_type, i1
from tessera.lower.vector.context import VectorContext
from tessera.lower.vector.nodes import Box, Convert, Coord, Coords, Load, Node, Remap, Stored
from tessera.lower.vector.site import Site, versions
from tessera.lower.vector.transposed import against_order
from tessera.numerics import dtypes
from tessera.target.products import Form

FEW_ROWS = 16
"""Up to so many rows of the left operand, packing the right one takes longer than multiplying."""


@dataclass(frozen=True)
class Packed:
    """An operand in scratch memory.

    Args:
        buffer: the rows or panels; or columns, as a view whose rows are not contiguous.
        outer: how many rows, or columns, lie inside the tensor; None for all.
        depth: how many terms of each sum lie inside; None for all.
    """

    buffer: Stored
    outer: SSAValue | None = None
    depth: SSAValue | None = None


@dataclass(eq=False)
class Grouped(Node):
    """A tile whose neighbours along `axis` are grouped in 32-bit elements; past its end they are zero.

    Args:
        source: the tile.
        axis: the axis that the sums run along.
        form: the product's form.
        flipped: whether 128 is added to each byte.
    """

    source: Node
    axis: int
    form: Form
    flipped: bool = False

    def operands(self, coords: Coords) -> list[tuple[Node, Coords]]:
        """The source where the group begins."""
        return [(self.source, coords)]

    @property
    def cost(self) -> int:
        """A shift and an or for each member."""
        return 2 * self.form.group

    def emit(self, site: Site, coords: Coords) -> SSAValue:
        """Join the chunks of one run along the axis, or interleave chunks across it."""
        along = coords[self.axis].lanes
        step = site.width if along else 1
        tail, chunks = site.tail, list[SSAValue]()
        for member in range(self.form.group):
            chunks.append(self._member(site, coords, member * step, along))
            site.tail = tail
        grouped = site.writer.value(GroupChunksOp(chunks, "join" if along else "interleave"))
        if not self.flipped:
            return grouped
        flip = site.writer.scalars.constant(-0x7F7F7F80, element_type(dtypes.i32))
        return site.apply("xor", [grouped, flip])

    def _member(self, site: Site, coords: Coords, offset: int, along: bool) -> SSAValue:
        base, size, scalars = coords[self.axis].base, self.source.shape[self.axis], site.writer.scalars
        if isinstance(base, int):
            place: SSAValue | int = base * self.form.group + offset
            left = size - (base * self.form.group + offset)
            if left <= 0:
                return site.chunk_of_zeros(self.source.element)
            site.tail = left if along and left < site.width else None if along else site.tail
        else:
            place = scalars.add(scalars.mul(base, self.form.group), offset)
        at = list(coords)
        at[self.axis] = Coord(place, along)
        chunk = site.chunk(self.source, tuple(at))
        valid = site.valid() if along and isinstance(base, int) else None
        if valid is None:
            return chunk
        return site.apply("select", [valid, chunk, site.chunk_of_zeros(self.source.element)])


def packed_element(form: Form) -> Attribute:
    """Return the element type of packed operands."""
    return element_type(form.packed)


def rows(context: VectorContext, node: Node, form: Form) -> Packed:
    """Return a left operand as rows; a buffer that has them already stays."""
    converted = _bounded(context, _converted(node, form), form)
    stored = converted.stored or converted
    if isinstance(stored, Stored) and stored.type.strides[-1] == 1:
        if form.group == 1:
            return Packed(stored)
        if _holds_groups(context, stored, form):
            return Packed(_groups_of(context, stored, form))
    if _by_columns(context, converted, form):
        return _columns(context, converted, form)
    shape = (node.shape[0], -(-node.shape[1] // form.group))
    source = Grouped(shape, packed_element(form), converted, 1, form, form.biased)
    walk = _Walk(context, converted, source if form.group > 1 else converted, form, depth_axis=1)
    return walk.pack(lambda shape: context.new_buffer(shape, packed_element(form)), None)


def _holds_groups(context: VectorContext, stored: Stored, form: Form) -> bool:
    """Whether rows of elements are rows of whole groups, with room for whole steps of a matrix unit."""
    length, pitch = stored.shape[1], stored.type.pitch.data
    step = form.group * (context.lanes if form.tiled else 1)
    return not form.biased and length % form.group == pitch % form.group == 0 and -(-length // step) * step <= pitch


def _groups_of(context: VectorContext, stored: Stored, form: Form) -> Stored:
    """Return rows of elements as rows of groups, which they are in memory."""
    shape = (stored.shape[0], stored.shape[1] // form.group)
    view = BufferType.of(
        shape, packed_element(form), stored.type.space.data, pitch=stored.type.pitch.data // form.group
    )
    return Stored(shape, packed_element(form), context.writer.value(ViewOp(stored.buffer, view)), stored.root)


def panels(context: VectorContext, node: Node, form: Form, width: int) -> Packed:
    """Return a right operand as panels of `width` columns."""
    converted = _bounded(context, _converted(node, form), form)
    source = Grouped((-(-node.shape[0] // form.group), node.shape[1]), packed_element(form), converted, 0, form)
    walk = _Walk(context, converted, source if form.group > 1 else converted, form, depth_axis=0)
    return walk.pack(lambda shape: context.new_buffer(shape, packed_element(form), dense=True), width)


def _by_columns(context: VectorContext, node: Node, form: Form) -> bool:
    """Whether a left operand stays in the order it is stored in, by columns, of which groups are interleaved.

    Matrix units take rows, and so do the inner products of few rows. Transposing squares of
    ungrouped elements takes no longer than memory does.
    """
    if node.shape[0] <= FEW_ROWS or form.group == 1 or form.tiled:
        return False
    return against_order(context, [node]) == [node]


def _columns(context: VectorContext, node: Node, form: Form) -> Packed:
    """Return a left operand as a view of its columns."""
    (m, k), groups = node.shape, -(-node.shape[1] // form.group)
    turned = Remap((k, m), node.element, node, (1, 0))
    source = Grouped((groups, m), packed_element(form), turned, 0, form, form.biased)
    walk = _Walk(context, turned, source, form, depth_axis=0)
    packed = walk.pack(lambda shape: context.new_buffer(shape, packed_element(form)), None)
    type_ = packed.buffer.type
    shape = (type_.shape[1], type_.shape[0])
    view = BufferType.of(shape, packed_element(form), "scratch", pitch=type_.pitch.data, perm=(1, 0))
    value = context.writer.value(ViewOp(packed.buffer.buffer, view))
    return replace(packed, buffer=Stored(shape, packed_element(form), value, packed.buffer.root))


def _converted(node: Node, form: Form) -> Node:
    element = element_type(form.operand)
    return node if node.element == element else Convert(node.shape, element, node)


def _bounded(context: VectorContext, node: Node, form: Form) -> Node:
    """Return an operand that is zero past its own end, too, where chunks go past it and the tensor goes on."""
    found = plain_load(node)
    if found is None:
        return node
    box, scalars = found[0].box, context.writer.scalars
    past = [axis for axis in box.kept if axis in box.unsafe and box.sizes[axis] % (context.lanes * form.group)]
    if not past:
        return node
    bounds = list(box.bounds)
    for axis in past:
        end = scalars.add(box.offsets[axis], box.sizes[axis])
        if axis not in box.forward:  # bounds are compared unsigned, and a box may end before the tensor begins
            end = scalars.binary("maximum", end, 0)
        bounds[axis] = scalars.binary("minimum", bounds[axis], end)
    load: Node = replace(found[0], box=replace(box, bounds=tuple(bounds)))
    return _over(load, node)


def _over(load: Node, node: Node) -> Node:
    """Return what a tile makes of a box, made of another one."""
    if isinstance(node, Remap | Convert):
        return replace(node, source=_over(load, node.source))
    return load


def plain_load(node: Node) -> tuple[Load, tuple[int, ...]] | None:
    """Return the box that a tile only converts or transposes, and the axis of the box each axis of the tile is."""
    axes = (0, 1)
    while node.stored is None and not node.wanted:
        if isinstance(node, Load):
            return (node, axes) if node.mask is None and node.fill is None else None
        if isinstance(node, Remap) and node.take in ((0, 1), (1, 0)):
            axes = tuple(node.take.index(axis) for axis in axes)
        elif not isinstance(node, Convert):
            return None
        (node,) = (operand for operand, _ in node.operands((Coord(0), Coord(0))))
    return None


def valid_sizes(
    context: VectorContext, node: Node, *, gathered: bool = False
) -> tuple[SSAValue | None, SSAValue | None] | None:
    """Return how much of each axis lies inside the tensor (None: all); None when a tile is not a plain box.

    Args:
        context: the lowering.
        node: the tile.
        gathered: whether the box may lie outside along dimensions that the tile does not have: then no column counts.
    """
    found = plain_load(node)
    if found is None:
        return None
    load, axes = found
    box, scalars = load.box, context.writer.scalars
    kept = [box.kept[axis] for axis in axes]
    dropped = [axis for axis in box.unsafe if axis not in kept]
    if any(axis not in box.forward for axis in box.unsafe if axis in kept) or (dropped and not gathered):
        return None
    sizes: list[SSAValue | None] = []
    for axis in kept:
        if axis not in box.unsafe:
            sizes.append(None)
            continue
        room = scalars.binary("sub", box.bounds[axis], box.offsets[axis])
        sizes.append(scalars.binary("maximum", scalars.binary("minimum", room, box.sizes[axis]), 0))
    if dropped:
        columns, inside = sizes[1] or scalars.constant(node.shape[1]), scalars.constant(True, i1)
        for axis in dropped:
            inside = scalars.binary("and", inside, _has(context, box, axis))
        sizes[1] = context.writer.value(ElementwiseOp("select", [inside, columns, scalars.constant(0)]))
    return sizes[0], sizes[1]


def _has(context: VectorContext, box: Box, axis: int) -> SSAValue:
    """Return whether a tensor has the place of a box in a dimension."""
    scalars, place = context.writer.scalars, box.offsets[axis]
    above, below = scalars.binary("ge", place, 0), scalars.binary("lt", place, box.bounds[axis])
    return scalars.binary("and", above, below)


@dataclass(frozen=True)
class _Part:
    """One iteration along an axis, in packed elements.

    Args:
        at: where it is.
        end: whether it is the incomplete last one.
        tail: how much is left there, where that is known; 0 elsewhere.
        left: how many elements of the operand are left there, where that is found out at run time.
        panel: the panel, for columns of a right operand.
        within: the place in the panel.
    """

    at: SSAValue | int
    end: bool = False
    tail: int = 0
    left: SSAValue | None = None
    panel: SSAValue | None = None
    within: SSAValue | int = 0


class _Walk:
    """Writes the loops that pack one operand.

    Args:
        context: the lowering.
        node: the operand, converted.
        packed: what is written: `node`, or its groups.
        form: the product's form.
        depth_axis: which axis the sums run along.
    """

    def __init__(self, context: VectorContext, node: Node, packed: Node, form: Form, depth_axis: int):
        self.scalars = context.writer.scalars
        self.context, self.packed, self.form, self.depth_axis = context, packed, form, depth_axis
        self.lanes = context.lanes
        self.shape = node.shape
        self.turned = against_order(context, [packed]) == [packed]
        valid = valid_sizes(context, node)
        self.known = valid is not None
        self.valid = (None, None) if valid is None else valid
        self.sites: tuple[Site, ...] = ()
        self.target: Stored | None = None
        self.width: int | None = None

    def pack(self, make: Callable[[tuple[int, ...]], Stored], width: int | None) -> Packed:
        """Allocate the buffer by `make` and write it; panels are `width` columns wide, None for rows."""
        count, length = self.packed.shape
        if self.turned or (self.form.tiled and width is not None):  # squares are written whole, tiles read whole
            count = -(-count // self.lanes) * self.lanes
        self.width = width
        self.target = make((count, length) if width is None else (-(-length // width), count, width))
        if self.known:
            interior, edge = (Site(self.context, self.lanes, inside) for inside in (True, False))
            self.sites = (interior, edge)
            self._nest()
        else:
            versions(self.context, self.lanes, [self.packed], self._general)
        outer = self.valid[1 - self.depth_axis]
        return Packed(self.target, outer, self.valid[self.depth_axis])

    def _general(self, site: Site) -> list[SSAValue]:
        self.sites = (site, site)
        self._nest()
        return []

    def _nest(self) -> None:
        # Squares go along the contiguous axis of what they read.
        if not self.turned:
            self._rows(lambda row: self._columns(lambda column: self._chunk(row, column)))
        elif any(self.shape[axis] % self._step(axis) for axis in (0, 1)):
            self._columns(lambda column: self._rows(lambda row: self._square(row, column)))
        else:
            self._even_squares()

    def _even_squares(self) -> None:
        """Loop over squares of a tile that holds a whole number of them; a test tells those that lie inside."""
        scalars = self.scalars

        def square(row: SSAValue, column: SSAValue) -> None:
            at = _Part(scalars.mul(row, self.lanes)), self._panel_part(scalars.mul(column, self.lanes))
            inside: SSAValue | None = None
            for axis, number in enumerate((row, column)):
                valid = self.valid[axis]
                if valid is not None:
                    end = scalars.mul(scalars.add(number, 1), self._step(axis))
                    fits = scalars.binary("le", end, valid)
                    inside = fits if inside is None else scalars.binary("and", inside, fits)
            if inside is None:
                self._square(*at)
                return

            def side(end: bool) -> list[SSAValue]:
                self._scoped(lambda: self._square(*(replace(part, end=end) for part in at)))
                return []

            self.context.writer.branch(inside, lambda: side(False), lambda: side(True))

        counts = [self._squares_along(axis) for axis in (0, 1)]
        self._each(counts[1], lambda j: self._each(counts[0], lambda i: square(self._index(i), self._index(j))))

    def _squares_along(self, axis: int) -> SSAValue | int:
        valid, step = self.valid[axis], self._step(axis)
        return self.shape[axis] // step if valid is None else self.scalars.ceildiv(valid, step)

    def _panel_part(self, column: SSAValue) -> _Part:
        if self.width is None:
            return _Part(column)
        panel = self.scalars.binary("floordiv", column, self.width)
        return _Part(column, panel=panel, within=self.scalars.binary("mod", column, self.width))

    def _rows(self, body: Callable[[_Part], None]) -> None:
        self._parts(self.shape[0], self.valid[0], self._step(0), self._unit(0), body)

    def _columns(self, body: Callable[[_Part], None]) -> None:
        step, unit = self._step(1), self._unit(1)
        width = self.width
        if width is None:
            self._parts(self.shape[1], self.valid[1], step, unit, body)
            return

        def panel(part: _Part) -> None:
            start = part.at
            size, valid = (part.tail or self.shape[1], part.left) if part.end else (width, None)
            number = self.scalars.binary("floordiv", self._index(start), width)

            def chunk(inner: _Part) -> None:
                column = start + inner.at if isinstance(start, int) and isinstance(inner.at, int) else None
                at = column if column is not None else self.scalars.add(self._index(start), inner.at)
                body(_Part(at, part.end, inner.tail, None, number, inner.at))

            self._parts(size, valid, step, unit, chunk, unrolled=not part.end and not self.turned)

        self._parts(self.shape[1], self.valid[1], width, width, panel)

    def _index(self, value: SSAValue | int) -> SSAValue:
        return self.scalars.constant(value) if isinstance(value, int) else value

    def _unit(self, axis: int) -> int:
        """Return how many packed elements one iteration along an axis covers."""
        return self.lanes if axis == 1 or self.turned else 1

    def _step(self, axis: int) -> int:
        """Return how many elements of the operand one iteration along an axis covers."""
        return self._unit(axis) * (self.form.group if axis == self.depth_axis else 1)

    def _parts(
        self,
        size: int,
        valid: SSAValue | None,
        step: int,
        unit: int,
        body: Callable[[_Part], None],
        unrolled: bool = False,
    ) -> None:
        """Loop over `valid` (None: `size`) elements, `step` at a time, each step `unit` packed elements."""
        scalars = self.scalars
        if valid is None:
            full, rest = divmod(size, step)
            if unrolled:
                for number in range(full):
                    body(_Part(number * unit))
            else:
                self._each(full, lambda i: body(_Part(self._times(i, unit))))
            if rest:
                body(_Part(full * unit, True, -(-rest * unit // step), None))
            return
        count, left = scalars.binary("floordiv", valid, step), scalars.binary("mod", valid, step)
        self._each(count, lambda i: body(_Part(self._times(i, unit))))

        def end() -> list[SSAValue]:
            self._scoped(lambda: body(_Part(scalars.mul(count, unit), True, 0, left)))
            return []

        self.context.writer.branch(scalars.binary("gt", left, scalars.constant(0)), end)

    def _times(self, number: SSAValue | int, factor: int) -> SSAValue | int:
        return number * factor if isinstance(number, int) else self.scalars.mul(number, factor)

    def _each(self, count: SSAValue | int, body: Callable[[SSAValue | int], None]) -> None:
        if isinstance(count, int) and count <= 1:
            for number in range(count):
                body(number)
            return

        def iteration(at: SSAValue, _carried: object) -> list[SSAValue]:
            self._scoped(lambda: body(at))
            return []

        self.context.writer.loop(0, count, 1, [], iteration)

    def _scoped(self, body: Callable[[], None]) -> None:
        first, second = self.sites
        if first is second:
            first.scoped(body)
        else:
            first.scoped(lambda: second.scoped(body))

    def _chunk(self, row: _Part, column: _Part) -> None:
        site = self.sites[1] if row.end or column.end else self.sites[0]
        site.tail = column.tail or None
        at = (Coord(row.at), Coord(column.at, lanes=True))
        self._store(site, row.at, column, site.chunk(self.packed, at))
        site.tail = None

    def _square(self, row: _Part, column: _Part) -> None:
        site = self.sites[1] if row.end or column.end else self.sites[0]
        chunks: list[SSAValue] = []
        for number in range(self.lanes):
            if column.tail and number >= column.tail:
                chunks.append(site.chunk_of_zeros(self.packed.element))
                continue
            site.tail = row.tail or None
            place = Coord(self._plus(column.at, number))
            chunks.append(site.chunk(self.packed, (Coord(row.at, lanes=True), place)))
        site.tail = None
        square = TransposeChunksOp(chunks, chunks[0].type)
        site.writer.insert(square)
        for number, chunk in enumerate(square.columns):
            self._store(site, self._plus(row.at, number), column, chunk)

    def _plus(self, place: SSAValue | int, number: int) -> SSAValue | int:
        return place + number if isinstance(place, int) else self.scalars.add(place, number)

    def _store(self, site: Site, row: SSAValue | int, column: _Part, chunk: SSAValue) -> None:
        assert self.target is not None
        place = (Coord(row), Coord(column.at, lanes=True))
        if column.panel is not None:
            place = (Coord(column.panel), Coord(row), Coord(column.within, lanes=True))
        site.store(self.target, place, chunk)
