"""Rules of atomics and fences: one thread runs a program, so that an order of its own accesses is the program's."""

from __future__ import annotations

from xdsl.ir import Attribute, SSAValue

from tessera.ir.target import atomics as target
from tessera.ir.tile.atomics import AtomicOp, FenceOp, orders_accesses
from tessera.ir.tile.types import element_of, shape_of
from tessera.lower.vector.context import VectorContext
from tessera.lower.vector.memory import element_mask, flat_offset, indexed_roots, node_of, scalar_of, strides_of
from tessera.lower.vector.nodes import Coords, Stored
from tessera.lower.vector.rules import lowers
from tessera.lower.vector.site import Site


@lowers(FenceOp)
def lower_fence(context: VectorContext, op: FenceOp) -> None:
    """Load what is to be loaded before it."""
    context.before_order()
    context.writer.insert(target.FenceOp(op.order.data, op.scope.data))


@lowers(AtomicOp)
def lower_atomic(context: VectorContext, op: AtomicOp) -> None:
    """Access single elements; old values are kept when something uses them."""
    if orders_accesses(op):
        context.before_order()
    arg = context.params.position(op.tensor)
    pointer, steps = context.params.pointer(arg), strides_of(context, arg, len(op.indices))
    names = op.order.data, op.scope.data
    if not shape_of(op.indices[0].type):
        context.before_write(("tensor", context.params.memory(arg)))
        offset, mask = flat_offset(context, op, steps)
        value, compare = (scalar_of(context, v) for v in (op.value, op.compare))
        atomic = target.AtomicOp(op.fn.data, value, pointer, offset, mask, compare, *names)
        context.writer.insert(atomic)
        if op.result is not None and atomic.result is not None:
            context.define_scalar(op.result, atomic.result)
        return
    value, compare, mask = node_of(context, op.value), node_of(context, op.compare), element_mask(context, op)
    indices = [context.node(i) for i in op.indices]
    roots = indexed_roots(context, arg, [n for n in (value, *indices, mask, compare) if n is not None])
    old = None if op.result is None else _result_buffer(context, op.result)

    def body(site: Site, coords: Coords) -> None:
        offsets, condition = site.element_offsets(indices, steps, mask, coords)
        given, expected = (None if node is None else site.chunk(node, coords) for node in (value, compare))
        atomic = target.AtomicOp(op.fn.data, given, pointer, offsets, condition, expected, *names)
        site.writer.insert(atomic)
        if old is not None and atomic.result is not None:
            site.store(old, coords, atomic.result)

    context.nest(roots, body)
    if old is not None and op.result is not None:
        context.define(op.result, old)


def _result_buffer(context: VectorContext, result: SSAValue[Attribute]) -> Stored | None:
    if not result.uses.get_length():
        return None
    return context.new_buffer(shape_of(result.type), element_of(result.type))
