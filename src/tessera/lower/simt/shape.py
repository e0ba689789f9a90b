"""SIMT lowering of broadcast, reshape and transpose: new names for the same registers."""

from __future__ import annotations

from xdsl.ir import SSAValue

from tessera.errors import LanguageError
from tessera.ir.layouts import LinearLayout, register_map
from tessera.ir.locations import location_of
from tessera.ir.target.arithmetic import RelayoutOp
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp, TransposeOp
from tessera.lower.simt.context import SimtContext, tile_shape
from tessera.lower.simt.placement import Placements, infers, padded_shape
from tessera.lower.simt.rules import lazy, lowers


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
    return LinearLayout.make(
        bases, [1 if axis in axes else size for axis, size in enumerate(layout.out_sizes)]
    )


@lazy(BroadcastOp)
def _broadcast(context: SimtContext, op: BroadcastOp, layout: LinearLayout) -> SSAValue:
    before, after = tile_shape(op.source), tile_shape(op.result)
    axes = [axis for axis, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    narrow = collapse(layout, axes)
    source = context.tile(op.source, narrow)
    return context.value(RelayoutOp(source, layout, register_map(narrow, _repeated(layout, axes))))


def _same_but_ones(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return [size for size in a if size != 1] == [size for size in b if size != 1]


def reshaped(layout: LinearLayout, shape: tuple[int, ...]) -> LinearLayout:
    """Return the layout of the same elements under another (padded) shape."""
    return layout.reshape(padded_shape(shape))


@infers(ReshapeOp)
def _place_reshape(placements: Placements, op: ReshapeOp) -> None:
    placement = placements.of(op.source)
    if placement is not None:
        layout = reshaped(placement.layout, tile_shape(op.result))
        placements.place(op.result, layout, placement.strength)


@lowers(ReshapeOp)
def _reshape(context: SimtContext, op: ReshapeOp) -> None:
    before, after = tile_shape(op.source), tile_shape(op.result)
    if not _same_but_ones(before, after) and (padded_shape(before) != before or padded_shape(after) != after):
        raise LanguageError(
            f"reshape of a tile {before} to {after}: sizes that are no powers of two stay as they are on a GPU",
            code="unsupported-reshape", location=location_of(op), help="reshape between powers of two",
        )  # fmt: skip
    if context.placements.of(op.source) is None:
        return
    source = context.tile(op.source, context.layout_of(op.source))
    context.define(op.result, context.relabel(source, reshaped(context.layout_of(op.source), after)))


@lazy(ReshapeOp)
def _lazy_reshape(context: SimtContext, op: ReshapeOp, layout: LinearLayout) -> SSAValue:
    source = context.tile(op.source, reshaped(layout, tile_shape(op.source)))
    return context.relabel(source, layout)


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
