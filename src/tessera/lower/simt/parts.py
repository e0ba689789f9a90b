"""SIMT lowering of parts of tiles.

Along a dimension that each thread holds all of, a part at constant places is other names for registers. Elsewhere a
tile goes through a transient shared buffer, from which each thread reads its share of the result.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from tessera.data import dataclass
from tessera.ir.layouts import REGISTER, LinearLayout
from tessera.ir.target.arithmetic import CastOp, ElementwiseOp, ExtractOp, IotaOp, RelayoutOp, constant_value
from tessera.ir.target.memory import BufferGatherOp, BufferLoadOp
from tessera.ir.target.types import BufferType, FragmentType, element_of
from tessera.ir.tile.parts import PartOp, TakeOp
from tessera.ir.types import dtype_of, element_type
from tessera.lower.parts import constant_starts, is_whole, starts_with_all, stays_inside
from tessera.lower.simt.context import SimtContext, is_tile, tile_shape
from tessera.lower.simt.placement import DEFAULT, Placements, infers, padded, padded_shape
from tessera.lower.simt.rules import lowers
from tessera.numerics import dtypes

I32, U32, U64 = (element_type(dtype) for dtype in (dtypes.i32, dtypes.u32, dtypes.u64))


@dataclass(frozen=True)
class _Renamed:
    """A part along dimensions whose elements are registers of each thread.

    Args:
        axes: the dimensions.
        sizes: how many elements are left along each of the tile's dimensions.
        layout: the layout of what is left.
        registers: the register of the tile that each of its registers is.
    """

    axes: tuple[int, ...]
    sizes: tuple[int, ...]
    layout: LinearLayout
    registers: tuple[int, ...]


def _renamed(layout: LinearLayout, op: PartOp) -> _Renamed:
    """Return what of a part of a tile in a layout renames registers."""
    shape, starts = tile_shape(op.source), constant_starts(op)
    axes = tuple(
        axis
        for axis in range(len(shape))
        if not is_whole(op, axis)
        and starts[axis] is not None
        and stays_inside(op, axis)
        and op.sizes[axis] <= shape[axis]
        and _in_registers(layout, axis)
    )
    sizes = tuple(op.sizes[axis] if axis in axes else size for axis, size in enumerate(shape))
    left = padded_shape(sizes)
    vectors = layout.in_bases(REGISTER)
    kept = [bit for bit, vector in enumerate(vectors) if all(x < n for x, n in zip(vector, left, strict=True))]
    bases = {**dict(layout.bases), REGISTER: [vectors[bit] for bit in kept]}
    part = LinearLayout.make(bases, left)
    others = [(number, bit) for number, bit in enumerate(kept) if not any(vectors[bit][axis] for axis in axes)]
    places: list[int] = []
    for register in range(part.registers):
        at, place = part.apply(register=register), sum(1 << bit for number, bit in others if register >> number & 1)
        for axis in axes:
            start = starts[axis]
            assert start is not None
            along = start + op.step_list[axis] * min(at[axis], op.sizes[axis] - 1)
            place |= _registers_of(layout, axis, along % shape[axis])
        places.append(place)
    return _Renamed(axes, sizes, part, tuple(places))


def _in_registers(layout: LinearLayout, axis: int) -> bool:
    """Return whether each thread holds all elements along an axis, each bit of their places in a register bit."""
    for dim, vectors in layout.bases:
        across = [vector for vector in vectors if vector[axis]]
        if across and dim != REGISTER:
            return False
        if any(sum(map(bool, vector)) != 1 or vector[axis] & (vector[axis] - 1) for vector in across):
            return False
    return True


def _registers_of(layout: LinearLayout, axis: int, place: int) -> int:
    """Return the register bits that are set at a place along an axis that is held in registers."""
    found, left = 0, place
    for bit, vector in enumerate(layout.in_bases(REGISTER)):
        if vector[axis] & left:
            found |= 1 << bit
            left &= ~vector[axis]
    return found


@infers(PartOp)
def _place_part(placements: Placements, op: PartOp) -> None:
    if not is_tile(op.result):
        return
    own = placements.of(op.source)
    if own is not None and _fills_padding(op):
        placements.place(op.result, own.layout, own.strength)
        return
    renamed = _renamed(placements.layout_or_default(op.source), op)
    if renamed.sizes == op.sizes and len(renamed.axes) == _changed(op):
        placements.place(op.result, renamed.layout, own.strength if own is not None else DEFAULT)
    else:
        placements.place(op.result, placements.default(op.sizes), DEFAULT)


def _fills_padding(op: PartOp) -> bool:
    """Return whether a part is all of a tile with zeros in the padding that a fragment of it has."""
    return starts_with_all(op) and padded_shape(op.sizes) == padded_shape(tile_shape(op.source))


def _changed(op: PartOp) -> int:
    return sum(not is_whole(op, axis) for axis in range(len(op.sizes)))


@lowers(PartOp)
def _part(context: SimtContext, op: PartOp) -> None:
    source = context.tile(op.source, context.layout_of(op.source))
    if _fills_padding(op):
        filled = context.fill_outside(source, tile_shape(op.source), 0)
        context.define(op.result, context.convert(filled, context.layout_of(op.result)))
        return
    assert isinstance(source.type, FragmentType)
    renamed = _renamed(source.type.linear, op)
    if renamed.axes:
        source = context.value(RelayoutOp(source, renamed.layout, renamed.registers))
    read = _Read(context, op, renamed, source)
    if not is_tile(op.result):
        layout = context.placements.default(op.sizes)
        context.define(op.result, context.value(ExtractOp(context.relabel(read.part(layout), layout.reshape(())))))
        return
    layout = context.placements.layout_or_default(op.result)
    done = len(renamed.axes) == _changed(op)
    context.define(op.result, context.convert(source, layout) if done else read.part(layout))


@dataclass(frozen=True)
class _Read:
    """Reads a part by way of shared memory.

    Args:
        context: the lowering.
        op: the part.
        renamed: what has been done of it.
        source: the tile after that.
    """

    context: SimtContext
    op: PartOp
    renamed: _Renamed
    source: SSAValue

    def part(self, layout: LinearLayout) -> SSAValue:
        """Return the part in a layout."""
        context, op = self.context, self.op
        steps = [1 if axis in self.renamed.axes else step for axis, step in enumerate(op.step_list)]
        plain = not any(self._wraps(axis) for axis in range(len(steps))) and all(step == 1 for step in steps)
        source, element = self.source, element_of(self.source.type)
        if plain and not all(self._inside(axis) for axis in range(len(steps))):
            source = context.fill_outside(source, self.renamed.sizes, 0)
        buffer = context.to_shared(source)
        if plain:
            return self._shifted(buffer, layout)
        at = [_Place(*self._place(axis, step, layout)) for axis, step in enumerate(steps)]
        return _gathered(context, buffer, at, element, layout)

    def _inside(self, axis: int) -> bool:
        return axis in self.renamed.axes or stays_inside(self.op, axis)

    def _wraps(self, axis: int) -> bool:
        return axis in self.op.wrapped and axis not in self.renamed.axes and not is_whole(self.op, axis)

    def _start(self, axis: int) -> SSAValue:
        """Return where to start, no further away than it takes to read nothing."""
        scalars = self.context.scalars
        if axis in self.renamed.axes:
            return scalars.constant(0)
        known, size = constant_starts(self.op)[axis], self.renamed.sizes[axis]
        start = self.context.scalar(self.op.starts[axis])
        if known is not None:
            start = scalars.constant(known)
        if self._wraps(axis):
            return start if known is not None else scalars.binary("mod", start, size)
        reach = abs(self.op.step_list[axis]) * padded(self.op.sizes[axis])
        return scalars.binary("minimum", scalars.binary("maximum", start, -reach), padded(size) + reach)

    def _shifted(self, buffer: SSAValue, layout: LinearLayout) -> SSAValue:
        """Return the neighbours from the starts on; what is padding, or outside, is zero."""
        context, element = self.context, element_of(self.source.type)
        starts = [self._start(axis) for axis in range(len(self.op.sizes))]
        fill = None if self._is_block(starts) else context.constant(0, element)
        return context.value(BufferLoadOp(buffer, FragmentType.of(element, layout), starts, fill=fill))

    def _is_block(self, starts: Sequence[SSAValue]) -> bool:
        """Return whether the part is one of equal parts of the padded tile, whose places flip no bit of the starts."""
        rows = zip(starts, padded_shape(self.op.sizes), padded_shape(self.renamed.sizes), strict=True)
        known = [(constant_value(start), size, whole) for start, size, whole in rows]
        return all(at is not None and 0 <= at <= whole - size and not at % size for at, size, whole in known)

    def _place(self, axis: int, step: int, layout: LinearLayout) -> tuple[SSAValue, int, bool]:
        """Return places along a dimension, its size, and whether all are inside."""
        context, size = self.context, self.renamed.sizes[axis]

        def spread(value: SSAValue) -> SSAValue:
            return context.splat(value, layout)

        place = context.value(IotaOp(axis, I32, layout))
        if step != 1:
            factor = spread(context.scalars.constant(step, I32))
            place = context.value(ElementwiseOp("mul", [place, factor]))
        start = spread(context.scalars.cast(self._start(axis), I32))
        place = context.value(ElementwiseOp("add", [place, start]))
        if self._wraps(axis):
            place = context.value(ElementwiseOp("mod", [place, spread(context.scalars.constant(size, I32))]))
        return context.value(CastOp(place, U32)), size, self._inside(axis)


@dataclass(frozen=True)
class _Place:
    """Places of elements along a dimension.

    Args:
        at: a fragment of u32.
        size: the dimension's size.
        inside: whether elements of the tile are known to be inside; padding may not be.
    """

    at: SSAValue
    size: int
    inside: bool


def _gathered(
    context: SimtContext, buffer: SSAValue, at: Sequence[_Place], element: object, layout: LinearLayout
) -> SSAValue:
    """Return the elements of a buffer at places, zero where one is outside."""
    type_ = buffer.type
    assert isinstance(type_, BufferType)

    def apply(fn: str, *args: SSAValue) -> SSAValue:
        return context.value(ElementwiseOp(fn, args))

    def constant(value: int) -> SSAValue:
        return context.splat(context.scalars.constant(value, U32), layout)

    total, inside = constant(0), None
    for place, stride in zip(at, type_.strides, strict=True):
        if place.inside:
            safe = apply("minimum", place.at, constant(place.size - 1))  # padding may read anything that is there
        else:
            here = apply("lt", place.at, constant(place.size))
            inside = here if inside is None else apply("and", inside, here)
            safe = apply("select", here, place.at, constant(0))
        total = apply("add", total, apply("mul", safe, constant(stride)))
    values = context.value(BufferGatherOp(buffer, total))
    if inside is None:
        return values
    return apply("select", inside, values, context.splat(context.constant(0, element), layout))


@infers(TakeOp)
def _place_take(placements: Placements, op: TakeOp) -> None:
    own = placements.of(op.index)
    layout = own.layout if own is not None else placements.default(tile_shape(op.result))
    placements.place(op.result, layout.unique_registers(), DEFAULT)


@lowers(TakeOp)
def _take(context: SimtContext, op: TakeOp) -> None:
    layout = context.placements.layout_or_default(op.result)
    source = context.tile(op.source, context.layout_of(op.source))
    index = context.tile(op.index, layout)
    buffer, at = context.to_shared(source), list[_Place]()
    for axis, size in enumerate(tile_shape(op.source)):
        if axis == op.axis.data:
            at.append(_Place(_near(context, index, size, layout), size, False))
        else:
            at.append(_Place(context.value(IotaOp(axis, U32, layout)), size, True))
    context.define(op.result, _gathered(context, buffer, at, element_of(source.type), layout))


def _near(context: SimtContext, index: SSAValue, size: int, layout: LinearLayout) -> SSAValue:
    """Return indices as u32, in which those outside of a dimension stay so."""
    dtype = dtype_of(element_of(index.type))
    if dtype.bits <= 32:
        # Negative numbers are large ones then.
        wide = index if dtype.bits == 32 else context.value(CastOp(index, I32))
        return wide if dtype == dtypes.u32 else context.value(CastOp(wide, U32))
    wide = index if dtype == dtypes.u64 else context.value(CastOp(index, U64))
    limit = context.splat(context.scalars.constant(size, U64), layout)
    return context.value(CastOp(context.value(ElementwiseOp("minimum", [wide, limit])), U32))
