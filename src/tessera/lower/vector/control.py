"""Rules of control flow: scalars stay SSA values, tiles cross a region's edge in scratch buffers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import prod

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue

from tessera.ir.tile.atomics import AtomicOp, SharedAtomicOp, orders_accesses
from tessera.ir.tile.memory import ScatterOp, StoreOp
from tessera.ir.tile.shared import CpAsyncOp, SharedScatterOp, SharedStoreOp
from tessera.ir.tile.types import TileType, shape_of
from tessera.ir.walking import ops_in
from tessera.lower.vector.context import VectorContext
from tessera.lower.vector.memory import place_sums
from tessera.lower.vector.mma import begins_sums, pack_before
from tessera.lower.vector.nodes import Node, Resource, Stored, pending, reads, walk
from tessera.lower.vector.rules import lowers


def region_writes(context: VectorContext, op: Operation) -> dict[Resource, None]:
    """Return the memory that ops inside `op` write."""
    found: dict[Resource, None] = {}
    for inner in ops_in(op):
        if isinstance(inner, StoreOp | ScatterOp) or (isinstance(inner, AtomicOp) and inner.writes):
            found["tensor", context.params.memory(context.params.position(inner.tensor))] = None
        elif isinstance(inner, SharedStoreOp | SharedScatterOp | CpAsyncOp | SharedAtomicOp):
            node = context.shared_root(inner.buffer)
            if node is not None:
                found["buffer", node] = None
    return found


def _is_tile(value: SSAValue) -> bool:
    return isinstance(value.type, TileType)


def _scalars_of(context: VectorContext, values: Sequence[SSAValue]) -> list[SSAValue]:
    return [context.scalar(v) for v in values if not _is_tile(v)]


def _bind_scalars(context: VectorContext, values: Sequence[SSAValue], lowered: Sequence[SSAValue]) -> None:
    for value, scalar in zip((v for v in values if not _is_tile(v)), lowered, strict=True):
        context.define_scalar(value, scalar)


def _bind_tiles(context: VectorContext, values: Sequence[SSAValue], buffers: Sequence[Stored]) -> None:
    for value, buffer in zip((v for v in values if _is_tile(v)), buffers, strict=True):
        context.define(value, Stored(buffer.shape, buffer.element, buffer.buffer, buffer.root))


def _enter(context: VectorContext, op: Operation) -> None:
    """Store, before the regions of `op`, what they overwrite, multiply again and again, or is costly."""
    for resource in region_writes(context, op):
        context.before_write(resource)
    if any(orders_accesses(inner) for inner in ops_in(op)):
        context.before_order()
    pack_before(context, op)
    context.store_costly(op)


def _own_buffers(
    context: VectorContext, op: Operation, values: Sequence[SSAValue], unwritten: Collection[int] = ()
) -> list[Stored]:
    """Return a buffer of its own for each tile that a loop starts with; those at `unwritten` hold nothing yet."""
    buffers: list[Stored] = []
    for position, value in enumerate(values):
        if not _is_tile(value):
            continue
        if position in unwritten:
            buffers += _new_buffers(context, op, [value])
            continue
        waiting = [v for at, v in enumerate(values) if at > position and _is_tile(v) and at not in unwritten]
        buffers.append(context.own_buffer(value, {b.root for b in buffers}, waiting))
        context.scratch.touch(buffers[-1].root, context.liveness.end[op])
    return buffers


def _new_buffers(context: VectorContext, op: Operation, values: Sequence[SSAValue]) -> list[Stored]:
    buffers = [context.new_buffer(shape_of(v.type), v.type.element) for v in values if _is_tile(v)]  # pyright: ignore
    for buffer in buffers:
        context.scratch.touch(buffer.root, context.liveness.end[op])
    return buffers


def _run(context: VectorContext, op: Operation, block: Block, buffers: Sequence[Stored]) -> list[SSAValue]:
    """Lower a region's block, put the tiles it hands on into `buffers` and return the scalars it hands on."""
    end = block.last_op
    assert end is not None
    with context.region(op):
        context.lower_ops(inner for inner in block.ops if inner is not end)
        context.position = context.liveness.order[end]
        tiles = [v for v in end.operands if _is_tile(v)]
        assign(context, [context.node(v) for v in tiles], buffers)
        return _scalars_of(context, list(end.operands))


def _sums_of_nothing(
    context: VectorContext,
    op: scf.ForOp,
    begun: Collection[int],
    buffers: Sequence[Stored],
    bounds: Sequence[SSAValue],
) -> None:
    """Write the tiles whose sums the first iteration begins, for a loop without iterations."""
    if not begun:
        return
    tiles = [(position, value) for position, value in enumerate(op.iter_args) if _is_tile(value)]

    def write() -> list[SSAValue]:
        for (position, value), buffer in zip(tiles, buffers, strict=True):
            if position in begun:
                context.write(context.node(value), buffer)
        return []

    context.writer.branch(context.writer.scalars.binary("ge", bounds[0], bounds[1]), write)


@lowers(scf.ForOp)
def lower_for(context: VectorContext, op: scf.ForOp) -> None:
    """A loop; each tile it carries has one buffer, updated in place where the old value dies."""
    block = op.body.block
    _enter(context, op)
    sums = [arg for arg in block.args[1:] if _is_tile(arg) and begins_sums(context, op, arg)]
    begun = [arg.index - 1 for arg in sums]
    buffers = _own_buffers(context, op, list(op.iter_args), begun)
    location = context.writer.location
    bounds = [context.scalar(v) for v in (op.lb, op.ub, op.step)]
    for arg in sums:
        place_sums(context, op, arg, bounds)
    used = [position for position in begun if op.results[position].uses.get_length()]
    _sums_of_nothing(context, op, used, buffers, bounds)

    def body(at: SSAValue, carried: Sequence[SSAValue]) -> Sequence[SSAValue]:
        context.define_scalar(block.args[0], at)
        for arg in sums:
            context.fresh[arg] = context.writer.scalars.binary("eq", at, bounds[0])
        _bind_scalars(context, block.args[1:], carried)
        _bind_tiles(context, block.args[1:], buffers)
        results = _run(context, op, block, buffers)
        context.writer.location = location
        return results

    results = context.writer.loop(bounds[0], bounds[1], bounds[2], _scalars_of(context, list(op.iter_args)), body)
    _bind_scalars(context, list(op.results), results)
    _bind_tiles(context, list(op.results), buffers)


@lowers(scf.IfOp)
def lower_if(context: VectorContext, op: scf.IfOp) -> None:
    """A branch; tiles it results in are written to one buffer by both sides."""
    _enter(context, op)
    buffers = _new_buffers(context, op, list(op.results))
    inside = [context.node(v) for v in context.liveness.used_inside(op) if context.is_tile(v)]
    waiting = pending(inside)

    def side(region_block: Block) -> Callable[[], Sequence[SSAValue]]:
        return lambda: _run(context, op, region_block, buffers)

    def without_store() -> Sequence[SSAValue]:
        for product in waiting:
            product.finish()
        return []

    otherwise = side(op.false_region.block) if op.false_region.blocks else None
    otherwise = without_store if waiting else otherwise  # nothing else is there, see `strips.store_after`
    results = context.writer.branch(context.scalar(op.cond), side(op.true_region.block), otherwise)
    _bind_scalars(context, list(op.results), results)
    _bind_tiles(context, list(op.results), buffers)


@lowers(scf.WhileOp)
def lower_while(context: VectorContext, op: scf.WhileOp) -> None:
    """A loop that tests first; tiles go from its arguments to its test to its body through buffers."""
    before, after = op.before_region.block, op.after_region.block
    _enter(context, op)
    arguments = _own_buffers(context, op, list(op.arguments))
    passed = _new_buffers(context, op, list(op.results))
    start = _scalars_of(context, list(op.arguments))
    writer = context.writer
    blocks = (
        Block(arg_types=[v.type for v in start]),
        Block(arg_types=[r.type for r in op.results if not _is_tile(r)]),
    )
    with writer.inside(blocks[0]):
        _bind_scalars(context, before.args, list(blocks[0].args))
        _bind_tiles(context, before.args, arguments)
        condition, *scalars = _run(context, op, before, passed)
        writer.insert(scf.ConditionOp(condition, *scalars))
    with writer.inside(blocks[1]):
        _bind_scalars(context, after.args, list(blocks[1].args))
        _bind_tiles(context, after.args, passed)
        writer.insert(scf.YieldOp(*_run(context, op, after, arguments)))
    loop = scf.WhileOp(start, [a.type for a in blocks[1].args], [blocks[0]], [blocks[1]])
    writer.insert(loop)
    _bind_scalars(context, list(op.results), list(loop.results))
    _bind_tiles(context, list(op.results), passed)


@lowers(scf.YieldOp, scf.ConditionOp)
def lower_region_end(context: VectorContext, op: scf.YieldOp | scf.ConditionOp) -> None:
    """Nothing: the op that holds the region reads the operands."""


def assign(context: VectorContext, nodes: Sequence[Node], targets: Sequence[Stored]) -> None:
    """Write tiles to buffers as if all at once, though the tiles may read the buffers' old contents.

    Tiles of one shape are written in one nest, which reads a chunk of all before it writes a chunk of any.
    Across shapes, and where a chunk is read from elsewhere, the reader is stored first.
    """
    pending = [
        (node, target)
        for node, target in zip(nodes, targets, strict=True)
        if not (isinstance(node.stored or node, Stored) and (node.stored or node).buffer is target.buffer)  # pyright: ignore
    ]
    shapes = sorted({target.shape for _, target in pending}, key=prod, reverse=True)
    for number, shape in enumerate(shapes):
        group = [(n, t) for n, t in pending if t.shape == shape]
        written: set[Resource] = {("buffer", t.root) for _, t in group}
        later = [n for n, t in pending if t.shape in shapes[number + 1 :]]
        for node in later:
            if written & reads(node):
                context.rescue(node)
        for node, _ in group:
            if any(not aligned and written & {*part.resources} for part, aligned in walk(node)):
                context.rescue(node)
        context.write_together(shape, group)
