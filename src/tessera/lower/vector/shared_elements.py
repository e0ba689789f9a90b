"""Rules of single elements of shared buffers, and of parts: index tiles that count up are read by whole chunks."""

from __future__ import annotations

from xdsl.ir import SSAValue

from tessera.ir.target.atomics import AddressOp
from tessera.ir.target.memory import GatherOp, ScatterOp
from tessera.ir.tile.shared import SharedGatherOp, SharedScatterOp
from tessera.ir.tile.types import TileType
from tessera.ir.types import i1, index
from tessera.lower.bounds import SharedElement
from tessera.lower.vector.context import VectorContext
from tessera.lower.vector.indexed import Elements, Gather
from tessera.lower.vector.inside import U64, below
from tessera.lower.vector.memory import node_of, scalar_of, store_elements
from tessera.lower.vector.nodes import Apply, Resource, Stored
from tessera.lower.vector.rules import lowers


def address_of(context: VectorContext, op: SharedElement) -> SSAValue:
    """Return where a buffer is."""
    return context.writer.value(AddressOp(_stored(context, op).buffer))


def resource_of(context: VectorContext, op: SharedElement) -> Resource:
    """Return a buffer as the memory that an access of it touches."""
    return "buffer", _stored(context, op).root


def buffer_elements(context: VectorContext, op: SharedElement) -> Elements:
    """Return the elements of a buffer that index tiles name."""
    stored, scalars, unproven = _stored(context, op), context.writer.scalars, context.bounds.unproven_of_buffer(op)
    bounds = [scalars.constant(size) if axis in unproven else None for axis, size in enumerate(stored.shape)]
    strides = tuple(scalars.constant(stride) for stride in stored.type.strides)
    indices, given = tuple(context.node(value) for value in op.indices), node_of(context, op.mask)
    mask = given
    for node, size in zip(indices, bounds, strict=True):
        if size is not None:
            inside = below(context, node, size)
            mask = inside if mask is None else Apply(mask.shape, i1, "and", (mask, inside))
    return Elements(address_of(context, op), strides, tuple(bounds), indices, given, mask)


def buffer_place(context: VectorContext, op: SharedElement) -> tuple[SSAValue, SSAValue | None]:
    """Return the offset of one element of a buffer, and whether it counts: inside the buffer, and not masked off."""
    stored, scalars, unproven = _stored(context, op), context.writer.scalars, context.bounds.unproven_of_buffer(op)
    condition, total = scalar_of(context, op.mask), scalars.constant(0)
    for axis, value in enumerate(op.indices):
        place = scalars.cast(context.scalar(value), index)
        if axis in unproven:
            inside = scalars.binary("lt", scalars.cast(place, U64), scalars.constant(stored.shape[axis], U64))
            condition = inside if condition is None else scalars.binary("and", condition, inside)
        total = scalars.add(total, scalars.mul(place, stored.type.strides[axis]))
    return total, condition


def _stored(context: VectorContext, op: SharedElement) -> Stored:
    node = context.node(op.buffer)
    assert isinstance(node, Stored)
    return node


@lowers(SharedGatherOp)
def lower_shared_gather(context: VectorContext, op: SharedGatherOp) -> None:
    """Note elements to be read where they are used; a single one is read at once."""
    type_ = op.result.type
    if isinstance(type_, TileType):
        memory, elements = resource_of(context, op), buffer_elements(context, op)
        context.define(op.result, Gather(type_.shape, type_.element, memory, elements))
        return
    offset, condition = buffer_place(context, op)
    gather = GatherOp(address_of(context, op), offset, condition)
    context.define_scalar(op.result, context.writer.value(gather))


@lowers(SharedScatterOp)
def lower_shared_scatter(context: VectorContext, op: SharedScatterOp) -> None:
    """Write single elements, or chunks where they are neighbours."""
    memory = resource_of(context, op)
    if isinstance(op.value.type, TileType):
        store_elements(context, context.node(op.value), buffer_elements(context, op), memory)
        return
    context.before_write(memory)
    offset, condition = buffer_place(context, op)
    context.writer.insert(ScatterOp(context.scalar(op.value), address_of(context, op), offset, condition))
