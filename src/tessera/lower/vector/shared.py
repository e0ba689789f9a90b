"""Rules of the explicit memory level: buffers are scratch, copies complete at once, barriers vanish.

A stage outside its buffer reads as zeros and is not written.
"""

from __future__ import annotations

from xdsl.ir import SSAValue

from tessera.ir.target.arithmetic import ElementwiseOp
from tessera.ir.target.memory import ViewOp
from tessera.ir.target.types import BufferType
from tessera.ir.tile.shared import (
    AllocSharedOp,
    BarrierOp,
    CommitGroupOp,
    CpAsyncOp,
    ProxyFenceOp,
    SharedLoadOp,
    SharedStoreOp,
    SharedTransposeOp,
    SharedViewOp,
    WaitGroupOp,
)
from tessera.ir.types import i1
from tessera.lower.facts import value_range
from tessera.lower.vector.context import VectorContext
from tessera.lower.vector.nodes import Apply, Load, Node, Stored, Uniform, reads
from tessera.lower.vector.rules import lowers


@lowers(AllocSharedOp)
def lower_alloc(context: VectorContext, op: AllocSharedOp) -> None:
    """Reserve scratch memory for the program's life; swizzles are for GPUs."""
    type_ = op.result.type
    stored = context.new_buffer(type_.shape, type_.element)
    context.scratch.keep(stored.root)
    context.define(op.result, stored)


@lowers(SharedViewOp)
def lower_view(context: VectorContext, op: SharedViewOp) -> None:
    """Take one stage of a ring."""
    source = _stored(context, op.source)
    type_ = source.type
    perm = [axis - 1 for axis in type_.permutation[1:]]
    result = BufferType.of(type_.shape[1:], type_.element, "scratch", pitch=type_.pitch.data, perm=perm)
    index = _guarded(context, op, source.shape[0])
    view = context.writer.value(ViewOp(source.buffer, result, index))
    context.define(op.result, Stored(result.shape, source.element, view, source.root))


def _guarded(context: VectorContext, op: SharedViewOp, count: int) -> SSAValue:
    """Return the number of a stage that exists, and note the condition on which it is the one asked for."""
    writer, index = context.writer, context.scalar(op.index)
    low, high = value_range(op.index)
    inside = context.guards.get(op.source)
    if low < 0 or high >= count:
        above, zero = writer.scalars.binary("ge", index, 0), writer.scalars.constant(0)
        own = writer.scalars.binary("and", above, writer.scalars.binary("lt", index, count))
        index = writer.value(ElementwiseOp("select", [own, index, zero]))
        inside = own if inside is None else writer.scalars.binary("and", inside, own)
    if inside is not None:
        context.guards[op.result] = inside
    return index


@lowers(SharedTransposeOp)
def lower_transpose(context: VectorContext, op: SharedTransposeOp) -> None:
    """View the buffer with its axes exchanged."""
    source = _stored(context, op.source)
    type_, perm = source.type, [axis.data for axis in op.perm.data]
    shape = [type_.shape[p] for p in perm]
    stored = [type_.permutation[p] for p in perm]
    result = BufferType.of(shape, type_.element, "scratch", pitch=type_.pitch.data, perm=stored)
    view = context.writer.value(ViewOp(source.buffer, result))
    context.define(op.result, Stored(tuple(shape), source.element, view, source.root))
    if op.source in context.guards:
        context.guards[op.result] = context.guards[op.source]


@lowers(SharedLoadOp)
def lower_shared_load(context: VectorContext, op: SharedLoadOp) -> None:
    """Read the buffer where the tile is used, or before it is next written."""
    source, inside = _stored(context, op.buffer), context.guards.get(op.buffer)
    node: Node = Stored(source.shape, source.element, source.buffer, source.root)
    if inside is not None:
        zero = Uniform(node.shape, node.element, context.writer.scalars.constant(0, node.element))
        node = Apply(node.shape, node.element, "select", (Uniform(node.shape, i1, inside), node, zero))
    context.define(op.result, node)


@lowers(SharedStoreOp)
def lower_shared_store(context: VectorContext, op: SharedStoreOp) -> None:
    """Write a tile to the buffer."""
    _fill(context, op.buffer, context.node(op.value))


@lowers(CpAsyncOp)
def lower_cp_async(context: VectorContext, op: CpAsyncOp) -> None:
    """Copy a box to the buffer now; a copy that is complete early is a correct asynchronous copy."""
    target = _stored(context, op.buffer)
    _fill(context, op.buffer, Load(target.shape, target.element, context.box(op)))


@lowers(CommitGroupOp, WaitGroupOp, BarrierOp, ProxyFenceOp)
def lower_synchronisation(
    context: VectorContext, op: CommitGroupOp | WaitGroupOp | BarrierOp | ProxyFenceOp
) -> None:
    """Nothing to wait for: one thread runs the program in order."""


def _stored(context: VectorContext, value: SSAValue) -> Stored:
    node = context.node(value)
    assert isinstance(node, Stored)
    return node


def _fill(context: VectorContext, buffer: SSAValue, node: Node) -> None:
    target = _stored(context, buffer)
    resource = ("buffer", target.root)
    if resource in reads(node):
        context.rescue(node)
    context.before_write(resource)
    inside = context.guards.get(buffer)
    if inside is None:
        context.write(node, target)
        return
    stored = context.materialise(node)

    def write() -> list[SSAValue]:
        context.write(stored, target)
        return []

    context.writer.branch(inside, write)
