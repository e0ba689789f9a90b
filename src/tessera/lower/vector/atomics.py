"""Rules of atomics and fences: one thread runs a program, so that an order of its own accesses is the program's."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Attribute, SSAValue

from tessera.data import dataclass
from tessera.ir.target import atomics as target
from tessera.ir.tile.atomics import AtomicOp, FenceOp, SharedAtomicOp, orders_accesses
from tessera.ir.tile.memory import shape_at
from tessera.ir.tile.types import element_of, shape_of
from tessera.lower.vector.context import VectorContext
from tessera.lower.vector.memory import element_mask, flat_offset, node_of, rescued, scalar_of, strides_of
from tessera.lower.vector.nodes import Coords, Node, Resource, Stored
from tessera.lower.vector.rules import lowers
from tessera.lower.vector.shared_elements import address_of, buffer_elements, buffer_place, resource_of
from tessera.lower.vector.site import Site


@lowers(FenceOp)
def lower_fence(context: VectorContext, op: FenceOp) -> None:
    """Load what is to be loaded before it."""
    context.before_order()
    context.writer.insert(target.FenceOp(op.order.data, op.scope.data))


@lowers(AtomicOp)
def lower_atomic(context: VectorContext, op: AtomicOp) -> None:
    """Access single elements of a tensor."""
    arg = context.params.position(op.tensor)
    steps, scalar = strides_of(context, arg, len(op.indices)), not shape_at(op.indices)
    place = flat_offset(context, op, steps) if scalar else None
    mask = None if scalar else element_mask(context, op)
    elements = _Elements(context.params.pointer(arg), ("tensor", context.params.memory(arg)), steps)
    _access(context, op, elements, place, mask)


@lowers(SharedAtomicOp)
def lower_shared_atomic(context: VectorContext, op: SharedAtomicOp) -> None:
    """Access single elements of a buffer."""
    at = buffer_elements(context, op) if shape_of(op.indices[0].type) else None
    place = buffer_place(context, op) if at is None else None
    elements = _Elements(address_of(context, op), resource_of(context, op), at.strides if at is not None else ())
    _access(context, op, elements, place, at.mask if at is not None else None)


@dataclass(frozen=True)
class _Elements:
    """Memory whose elements are accessed.

    Args:
        pointer: its address.
        resource: what it is.
        steps: the stride of each dimension, where tiles of elements are accessed.
    """

    pointer: SSAValue
    resource: Resource
    steps: Sequence[SSAValue]


def _access(
    context: VectorContext,
    op: AtomicOp | SharedAtomicOp,
    elements: _Elements,
    place: tuple[SSAValue, SSAValue | None] | None,
    mask: Node | None,
) -> None:
    """Access single elements; old values are kept when something uses them.

    Args:
        context: the state of the lowering.
        op: the op.
        elements: what is accessed.
        place: the offset of a single element and whether it counts; None for a tile.
        mask: which elements of a tile count.
    """
    if orders_accesses(op):
        context.before_order()
    names = op.order.data, op.scope.data
    if place is not None:
        context.before_write(elements.resource)
        value, compare = (scalar_of(context, v) for v in (op.value, op.compare))
        atomic = target.AtomicOp(op.fn.data, value, elements.pointer, place[0], place[1], compare, *names)
        context.writer.insert(atomic)
        if op.result is not None and atomic.result is not None:
            context.define_scalar(op.result, atomic.result)
        return
    value, compare = node_of(context, op.value), node_of(context, op.compare)
    indices = [context.node(i) for i in op.indices]
    roots = rescued(context, elements.resource, [n for n in (value, *indices, mask, compare) if n is not None])
    old = None if op.result is None else _result_buffer(context, op.result)

    def body(site: Site, coords: Coords) -> None:
        offsets, condition = site.element_offsets(indices, elements.steps, mask, coords)
        given, expected = (None if node is None else site.chunk(node, coords) for node in (value, compare))
        atomic = target.AtomicOp(op.fn.data, given, elements.pointer, offsets, condition, expected, *names)
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
