"""Puts groups of maps into the products that they read: one kernel may compute both.

%p = tessera_graph.contract %a, %b                  %g = tessera_graph.product(%a, %b, %c) {
%g = tessera_graph.group(%p, %c) {…}           →      %p = tessera_graph.contract %a, %b
                                                      %g = tessera_graph.group(%p, %c) {…}
                                                      tessera_graph.yield %g }

A group goes along all elements of the product's result in their order, and only maps them. Whether one kernel pays is
decided where sizes and device are known.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Block, Operation, SSAValue

from tessera.ir.graph.points import CastOp, FullOp, MapOp, SizeOp
from tessera.ir.graph.structure import GraphOp, GroupOp, ProductOp, YieldOp
from tessera.ir.graph.sums import ContractOp
from tessera.ir.graph.types import array_type, dims_of
from tessera.ir.graph.views import ConcatOp, ReshapeOp
from tessera.schedule.fuse.apart import IN_PARTS, NEEDED_BETWEEN, NO_FLOATS, NOT_POINTWISE, OTHER_ORDER, Apart
from tessera.schedule.fuse.places import Place, is_view, own_place, result_at, source_place

FLOATS = ("f64", "f32", "bf16", "f16")


def put_into_products(graph: GraphOp, apart: Sequence[Apart]) -> list[Apart]:
    """Put groups into products; return why groups are not one with what they read.

    Args:
        graph: it is cut into groups.
        apart: what is known of that.
    """
    found = list(apart)
    become: dict[GroupOp, GroupOp] = {}
    for group in [op for op in graph.body.block.ops if isinstance(op, GroupOp)]:
        for value in reversed(_products_of(group)):
            chain = _chain(value)
            why = _why_none(group, value, chain)
            if why is None:
                become[group] = _put(group, value, chain).group
                break
            found.append(Apart(group, chain[0], why))
    return [Apart(become.get(one.reader, one.reader), _as(one.read, become), one.why) for one in found]


def _as(read: GroupOp | ContractOp, become: dict[GroupOp, GroupOp]) -> GroupOp | ContractOp:
    return become.get(read, read) if isinstance(read, GroupOp) else read


Chain = tuple[ContractOp, list[ReshapeOp]]
"""A product, and the reshapes through which its result is read, in order."""


def _products_of(group: GroupOp) -> list[SSAValue]:
    """Return the operands of a group that are products, in the order in which they are computed."""
    block = group.parent_block()
    assert block is not None, "a group is in its graph"
    order = {op: number for number, op in enumerate(block.ops) if isinstance(op, ContractOp)}
    found = [value for value in group.inputs if _root(value) in order]
    return sorted(found, key=lambda value: order[_root(value)])


def _root(value: SSAValue) -> Operation | object:
    owner = value.owner
    while isinstance(owner, ReshapeOp):
        owner = owner.source.owner
    return owner


def _chain(value: SSAValue) -> Chain:
    shapes: list[ReshapeOp] = []
    owner = value.owner
    while isinstance(owner, ReshapeOp):
        shapes.insert(0, owner)
        owner = owner.source.owner
    assert isinstance(owner, ContractOp), "it is a product"
    return owner, shapes


def _why_none(group: GroupOp, value: SSAValue, chain: Chain) -> str | None:
    """Return why a group is not computed where a product's sums are, None where it can be."""
    contract, _ = chain
    inside = list(group.body.block.ops)
    own = own_place(dims_of(value))
    if array_type(contract.result).dtype.name not in FLOATS:
        return NO_FLOATS
    if not all(isinstance(op, MapOp | CastOp | FullOp | SizeOp | YieldOp) or is_view(op) for op in inside):
        return NOT_POINTWISE
    if dims_of(value)[-1] != dims_of(contract.result)[-1]:
        return OTHER_ORDER
    argument = group.body.block.args[group.inputs.index(value)]
    if _places(group, argument) != {own} or any(_result_place(one) != own for one in _yielded(group)):
        return OTHER_ORDER
    if not any(array_type(one).dtype.name in FLOATS for one in group.outputs):
        return NO_FLOATS
    if any(isinstance(use.operation, ConcatOp) for one in group.outputs for use in one.uses):
        return IN_PARTS
    between = _dependents(chain, group)
    if any(one is not value and one.owner in between for one in group.inputs):
        return NEEDED_BETWEEN
    return None


def _yielded(group: GroupOp) -> Sequence[SSAValue]:
    end = group.body.block.last_op
    assert end is not None, "a group ends with its yield"
    return end.operands


def _result_place(value: SSAValue) -> Place | None:
    """Return the place of what a group writes, None where it is an operand that is copied."""
    op = value.owner
    at = result_at(op) if isinstance(op, Operation) else None
    return None if at is None else tuple(at)


def _places(group: GroupOp, argument: SSAValue) -> set[Place]:
    """Return the places at which maps of a group read an operand."""
    found: set[Place] = set()
    work = [(value, _result_place(value)) for value in _yielded(group)]
    seen = set[tuple[SSAValue, Place]]()
    while work:
        value, place = work.pop()
        if place is None or (value, place) in seen:
            continue
        seen.add((value, place))
        op = value.owner
        if value is argument:
            found.add(place)
        elif isinstance(op, Operation) and is_view(op):
            work.append((op.operands[0], source_place(op, place)))
        elif isinstance(op, MapOp | CastOp):
            work += [(one, place) for one in op.operands]
    return found


def _dependents(chain: Chain, group: GroupOp) -> dict[Operation, None]:
    """Return the ops before a group that follow from a product, but for the reshapes through which that one reads."""
    contract, shapes = chain
    found: dict[Operation, None] = {contract: None}
    op = contract.next_op
    while op is not None and op is not group:
        if any(value.owner in found for value in op.operands):
            found[op] = None
        op = op.next_op
    for one in (contract, *shapes):
        if one is contract or all(use.operation in (group, *shapes) for use in one.results[0].uses):
            found.pop(one, None)
    return found


def _put(group: GroupOp, value: SSAValue, chain: Chain) -> ProductOp:
    """Put a group into a product: both run where the group did, and what else follows from the product after them."""
    contract, shapes = chain
    late = _dependents(chain, group)
    is_wanted = any(use.operation is not group and use.operation not in shapes for use in contract.result.uses)
    is_wanted = is_wanted or any(op in late for op in shapes)
    inputs = list(dict.fromkeys((*contract.operands, *(one for one in group.inputs if one is not value))))
    types = [*([contract.result.type] if is_wanted else []), *(one.type for one in group.outputs)]
    made = ProductOp(inputs, types)
    made.location = contract.location
    _fill(made, group, chain, inputs, is_wanted)
    block = group.parent_block()
    assert block is not None, "a group is in its graph"
    block.insert_op_before(made, group)
    outputs = list(made.outputs)
    if is_wanted:
        contract.result.replace_all_uses_with(outputs.pop(0))
    for old, new in zip(group.outputs, outputs, strict=True):
        old.replace_all_uses_with(new)
    last: Operation = made
    for op in late:
        op.detach()
        block.insert_op_after(op, last)
        last = op
    for op in (group, *reversed(shapes), contract):
        if op not in late:
            op.detach()
            op.erase()
    return made


def _fill(made: ProductOp, group: GroupOp, chain: Chain, inputs: Sequence[SSAValue], is_wanted: bool) -> None:
    """Write the body of a product."""
    body: Block = made.body.block
    known: dict[SSAValue, SSAValue] = dict(zip(inputs, body.args, strict=True))
    contract, shapes = chain
    for op in (contract, *shapes, group):
        copy = op.clone(known)
        copy.location = op.location
        body.add_op(copy)
        known.update(zip(op.results, copy.results, strict=True))
    product = [known[contract.result]] if is_wanted else []
    body.add_op(YieldOp([*product, *(known[one] for one in group.outputs)]))


def dissolved(op: ProductOp) -> tuple[ContractOp, GroupOp]:
    """Put what a product holds in its place; return the product of matrices, and the group."""
    block = op.parent_block()
    assert block is not None, "a product is in its graph"
    known: dict[SSAValue, SSAValue] = dict(zip(op.body.block.args, op.inputs, strict=True))
    made: list[Operation] = []
    *inside, end = op.body.block.ops
    for one in inside:
        copy = one.clone(known)
        copy.location = one.location
        block.insert_op_before(copy, op)
        known.update(zip(one.results, copy.results, strict=True))
        made.append(copy)
    for old, new in zip(op.outputs, end.operands, strict=True):
        old.replace_all_uses_with(known[new])
    op.detach()
    op.erase()
    contract, group = made[0], made[-1]
    assert isinstance(contract, ContractOp), "it begins with the product"
    assert isinstance(group, GroupOp), "it ends with the group"
    return contract, group
