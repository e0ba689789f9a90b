"""SIMT lowering of broadcast, reshape and transpose: new names for the same registers, where sizes allow."""

from __future__ import annotations

from math import prod

from xdsl.ir import SSAValue

from tessera.ir.layouts import REGISTER, LinearLayout, register_map
from tessera.ir.target.arithmetic import ElementwiseOp, IotaOp, RelayoutOp
from tessera.ir.target.memory import BufferGatherOp
from tessera.ir.target.types import FragmentType
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp, SubtileOp, TransposeOp
from tessera.ir.types import element_type
from tessera.lower.simt.context import SimtContext, tile_shape
from tessera.lower.simt.placement import DEFAULT, Placements, infers, padded_shape
from tessera.lower.simt.rules import lazy, lowers
from tessera.numerics import dtypes


def collapse(layout: LinearLayout, axes: list[int]) -> LinearLayout:
    """Return a layout with some axes shrunk to size 1: what a thread needs before it repeats along them."""
    bases = {
        dim: [[0 if axis in axes else x for axis, x in enumerate(vector)] for vector in vectors]
        for dim, vectors in layout.bases
    }
    sizes = [1 if axis in axes else size for axis, size in enumerate(layout.out_sizes)]
    return LinearLayout.make(bases, sizes).unique_registers()


def _repeated(layout: LinearLayout, axes: list[int]) -> LinearLayout:
    """Return `layout` collapsed along `axes` but with all its registers kept (copies of each other)."""
    bases = {
        dim: [[0 if axis in axes else x for axis, x in enumerate(vector)] for vector in vectors]
        for dim, vectors in layout.bases
    }
    return LinearLayout.make(bases, [1 if axis in axes else size for axis, size in enumerate(layout.out_sizes)])


@lazy(BroadcastOp)
def _broadcast(context: SimtContext, op: BroadcastOp, layout: LinearLayout) -> SSAValue:
    before, after = tile_shape(op.source), tile_shape(op.result)
    axes = [axis for axis, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    narrow = collapse(layout, axes)
    source = context.tile(op.source, narrow)
    return context.value(RelayoutOp(source, layout, register_map(narrow, _repeated(layout, axes))))


def keeps_places(before: tuple[int, ...], after: tuple[int, ...]) -> bool:
    """Return whether a reshape only renames index bits: behind the first, sizes split or merged are powers of two.

    Padding moves elements that lie behind another size; behind the first one there is nothing but more of them.
    """
    old, new = [s for s in before if s != 1], [s for s in after if s != 1]
    while old and new:
        left, right = [old.pop(0)], [new.pop(0)]
        while prod(left) != prod(right):
            short, rest = (left, old) if prod(left) < prod(right) else (right, new)
            short.append(rest.pop(0))
        if left != right and any(size & (size - 1) for size in (*left[1:], *right[1:])):
            return False
    return True


def reshaped(layout: LinearLayout, shape: tuple[int, ...]) -> LinearLayout:
    """Return the layout of the same elements under another (padded) shape."""
    return layout.reshape(padded_shape(shape))


@infers(ReshapeOp)
def _place_reshape(placements: Placements, op: ReshapeOp) -> None:
    after = tile_shape(op.result)
    if not keeps_places(tile_shape(op.source), after):
        placements.place(op.result, placements.default(after), DEFAULT)
        return
    placement = placements.of(op.source)
    if placement is not None:
        placements.place(op.result, reshaped(placement.layout, after), placement.strength)


@lowers(ReshapeOp)
def _reshape(context: SimtContext, op: ReshapeOp) -> None:
    before, after = tile_shape(op.source), tile_shape(op.result)
    if not keeps_places(before, after):
        context.define(op.result, _renumbered(context, op, context.layout_of(op.result)))
    elif context.placements.of(op.source) is not None:
        source = context.tile(op.source, context.layout_of(op.source))
        context.define(op.result, context.relabel(source, reshaped(context.layout_of(op.source), after)))


@lazy(ReshapeOp)
def _lazy_reshape(context: SimtContext, op: ReshapeOp, layout: LinearLayout) -> SSAValue:
    source = context.tile(op.source, reshaped(layout, tile_shape(op.source)))
    return context.relabel(source, layout)


def _renumbered(context: SimtContext, op: ReshapeOp, layout: LinearLayout) -> SSAValue:
    """Reshape by way of shared memory: each thread finds where its elements stand in the source."""
    before, after = tile_shape(op.source), tile_shape(op.result)
    source = context.tile(op.source, context.layout_of(op.source))
    assert isinstance(source.type, FragmentType)
    buffer = context.to_shared(source)
    u32 = element_type(dtypes.u32)

    def constant(value: int) -> SSAValue:
        return context.splat(context.scalars.constant(value, u32), layout)

    def apply(fn: str, a: SSAValue, b: SSAValue) -> SSAValue:
        return context.value(ElementwiseOp(fn, [a, b]))

    number = constant(0)
    for axis, size in enumerate(after):
        at = context.value(IotaOp(axis, u32, layout))
        number = apply("add", apply("mul", number, constant(size)), at)
    number = apply("minimum", number, constant(prod(after) - 1))  # padding may read anything that is there
    place, step = constant(0), 1
    for size, padded in reversed(list(zip(before, source.type.shape, strict=True))):
        place = apply("add", place, apply("mul", apply("mod", number, constant(size)), constant(step)))
        number, step = apply("floordiv", number, constant(size)), step * padded
    return context.value(BufferGatherOp(buffer, place))


@infers(TransposeOp)
def _place_transpose(placements: Placements, op: TransposeOp) -> None:
    placement = placements.of(op.source)
    if placement is not None:
        placements.place(op.result, placement.layout.transpose(op.permutation), placement.strength)


@lowers(TransposeOp)
def _transpose(context: SimtContext, op: TransposeOp) -> None:
    if context.placements.of(op.source) is not None:
        layout = context.layout_of(op.source)
        source = context.tile(op.source, layout)
        context.define(op.result, context.relabel(source, layout.transpose(op.permutation)))


@lazy(TransposeOp)
def _lazy_transpose(context: SimtContext, op: TransposeOp, layout: LinearLayout) -> SSAValue:
    inverse = [op.permutation.index(axis) for axis in range(len(op.permutation))]
    source = context.tile(op.source, layout.transpose(inverse))
    return context.relabel(source, layout)


def _part_of(layout: LinearLayout, shape: tuple[int, ...]) -> LinearLayout | None:
    """Return the layout of one of equal parts of a tile, None unless each thread holds its share of every part."""
    kept: dict[str, list[tuple[int, ...]]] = {}
    for dim, vectors in layout.bases:
        across = [any(x >= size for x, size in zip(vector, shape, strict=True)) for vector in vectors]
        if dim != REGISTER and any(across):
            return None
        for vector, beyond in zip(vectors, across, strict=True):
            if beyond and sum(map(bool, vector)) != 1:
                return None
        kept[dim] = [vector for vector, beyond in zip(vectors, across, strict=True) if not beyond]
    return LinearLayout.make(kept, shape)


def _divisible(placements: Placements, op: SubtileOp) -> LinearLayout:
    """Return the layout to take parts of a tile from: its own if it can be, else one made of parts."""
    whole, part = padded_shape(tile_shape(op.source)), padded_shape(tile_shape(op.result))
    own = placements.layout_or_default(op.source)
    if _part_of(own, part) is not None:
        return own
    bases = {dim: list(vectors) for dim, vectors in placements.default(part).bases}
    for axis, (size, piece) in enumerate(zip(whole, part, strict=True)):
        while piece < size:
            bases[REGISTER].append(tuple(piece if a == axis else 0 for a in range(len(whole))))
            piece *= 2
    return LinearLayout.make(bases, whole)


@infers(SubtileOp)
def _place_subtile(placements: Placements, op: SubtileOp) -> None:
    layout = _part_of(_divisible(placements, op), padded_shape(tile_shape(op.result)))
    assert layout is not None
    own = placements.of(op.source)
    placements.place(op.result, layout, own.strength if own is not None else DEFAULT)


@lowers(SubtileOp)
def _subtile(context: SimtContext, op: SubtileOp) -> None:
    if op.result in context.values:
        return  # a scan has told its last elements
    shape = padded_shape(tile_shape(op.result))
    layout = _divisible(context.placements, op)
    part = _part_of(layout, shape)
    assert part is not None
    first, free = 0, list[int]()
    for bit, vector in enumerate(layout.in_bases(REGISTER)):
        beyond = [at & x for x, size, at in zip(vector, shape, op.places, strict=True) if x >= size]
        if not beyond:
            free.append(1 << bit)
        elif any(beyond):
            first |= 1 << bit
    registers = [
        first | sum(step for number, step in enumerate(free) if r >> number & 1) for r in range(1 << len(free))
    ]
    source = context.tile(op.source, layout)
    context.define(op.result, context.value(RelayoutOp(source, part, registers)))
