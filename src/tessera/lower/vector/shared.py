"""Rules of the explicit memory level: buffers are scratch, copies complete at once, barriers vanish."""

from __future__ import annotations

from xdsl.ir import SSAValue

from tessera.ir.notes import add_note
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
from tessera.lower.vector.context import VectorContext
from tessera.lower.vector.nodes import Load, Node, Stored, reads
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
    view = context.writer.value(ViewOp(source.buffer, result, context.scalar(op.index)))
    context.define(op.result, Stored(result.shape, source.element, view, source.root))


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


@lowers(SharedLoadOp)
def lower_shared_load(context: VectorContext, op: SharedLoadOp) -> None:
    """Read the buffer where the tile is used, or before it is next written."""
    source = _stored(context, op.buffer)
    context.define(op.result, Stored(source.shape, source.element, source.buffer, source.root))


@lowers(SharedStoreOp)
def lower_shared_store(context: VectorContext, op: SharedStoreOp) -> None:
    """Write a tile to the buffer."""
    _fill(context, op.buffer, context.node(op.value))


@lowers(CpAsyncOp)
def lower_cp_async(context: VectorContext, op: CpAsyncOp) -> None:
    """Copy a box to the buffer now; a copy that is complete early is a correct asynchronous copy."""
    target = _stored(context, op.buffer)
    add_note(context.params.func, "copies", "asynchronous copies are made where they start: one thread runs a program")
    _fill(context, op.buffer, Load(target.shape, target.element, context.box(op)))


@lowers(CommitGroupOp, WaitGroupOp, BarrierOp, ProxyFenceOp)
def lower_synchronisation(context: VectorContext, op: CommitGroupOp | WaitGroupOp | BarrierOp | ProxyFenceOp) -> None:
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
    context.write(node, target)
