"""Rules of shape changes: views of an expression's axes, or scratch where elements are renumbered."""

from __future__ import annotations

from tessera.ir.target.memory import ViewOp
from tessera.ir.target.types import BufferType
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp, TransposeOp, unit_axes
from tessera.ir.tile.types import element_of, shape_of
from tessera.lower.vector.context import VectorContext
from tessera.lower.vector.nodes import Node, Remap, Stored
from tessera.lower.vector.rules import lowers


@lowers(BroadcastOp)
def lower_broadcast(context: VectorContext, op: BroadcastOp) -> None:
    """Read position 0 of the axes that are repeated."""
    source = context.node(op.source)
    take = tuple(None if size == 1 else axis for axis, size in enumerate(source.shape))
    context.define(op.result, Remap(shape_of(op.result.type), source.element, source, take))


@lowers(TransposeOp)
def lower_transpose(context: VectorContext, op: TransposeOp) -> None:
    """Read the source with its axes exchanged."""
    source = context.node(op.source)
    take = tuple(op.permutation.index(axis) for axis in range(len(source.shape)))
    context.define(op.result, Remap(shape_of(op.result.type), source.element, source, take))


@lowers(ReshapeOp)
def lower_reshape(context: VectorContext, op: ReshapeOp) -> None:
    """Add or drop axes of size 1 in place; any other reshape goes through a dense buffer."""
    source, shape = context.node(op.source), shape_of(op.result.type)
    take = unit_axes(source.shape, shape)
    if take is not None:
        context.define(op.result, Remap(shape, source.element, source, take))
        return
    dense = context.new_buffer(source.shape, source.element, dense=True)
    context.write(source, dense)
    context.define(op.result, _viewed(context, dense, shape, element_of(op.result.type)))


def _viewed(context: VectorContext, dense: Stored, shape: tuple[int, ...], element: object) -> Node:
    type_ = BufferType.of(shape, dense.element, "scratch")
    view = context.writer.value(ViewOp(dense.buffer, type_))
    return Stored(shape, dense.element, view, dense.root)
