"""Puts groups of maps into the products that they read: one kernel may compute both.

%p = tessera_graph.contract %a, %b                  %g = tessera_graph.product(%a, %b, %c) {
%g = tessera_graph.group(%p, %c) {…}           →      %p = tessera_graph.contract %a, %b
                                                      %g = tessera_graph.group(%p, %c) {…}
                                                      tessera_graph.yield %g }

A group goes along all elements of the product's result in their order, and maps them. One that reduces them, too, is
divided: what it writes of maps alone may be the product's kernel's, the rest reads that. Whether one kernel pays is
decided where sizes and device are known.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from xdsl.ir import Block, Operation, SSAValue

from tessera.data import dataclass
from tessera.ir.attributes import words
from tessera.ir.graph.points import CastOp, FullOp, MapOp, SizeOp
from tessera.ir.graph.structure import GraphOp, GroupOp, ProductOp, YieldOp
from tessera.ir.graph.sums import ContractOp
from tessera.ir.graph.types import array_type, dims_of
from tessera.ir.graph.views import ConcatOp, ReshapeOp
from tessera.schedule.fuse.apart import IN_PARTS, NEEDED_BETWEEN, NO_FLOATS, NOT_POINTWISE, OTHER_ORDER, Apart
from tessera.schedule.fuse.places import NONE, Place, is_view, own_place, result_at, source_place
from tessera.schedule.fuse.writing import AXES, ROWS

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
    return [Apart(become.get(one.reader, one.reader), read_after(one.read, become), one.why) for one in found]


def read_after(read: GroupOp | ContractOp, become: Mapping[GroupOp, GroupOp]) -> GroupOp | ContractOp:
    """Return what a group reads once groups have become others."""
    return become.get(read, read) if isinstance(read, GroupOp) else read


Chain = tuple[ContractOp, list[ReshapeOp]]
"""A product, and the reshapes through which its result is read, in order."""


def _products_of(group: GroupOp) -> list[SSAValue]:
    """Return the operands of a group that are products, in the order in which they are computed."""
    block = group.parent_block()
    assert block is not None, "a group is in its graph"
    order: dict[object, int] = {op: number for number, op in enumerate(block.ops) if isinstance(op, ContractOp)}
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
    own = own_place(dims_of(value))
    if array_type(contract.result).dtype.name not in FLOATS:
        return NO_FLOATS
    if dims_of(value)[-1] != dims_of(contract.result)[-1]:
        return OTHER_ORDER
    source = group.inputs.index(value)
    division = divided(group, source)
    if division is None:
        return NOT_POINTWISE
    with division as maps:
        argument = maps.body.block.args[maps.inputs.index(value)]
        if _places(maps, argument) != {own}:
            return OTHER_ORDER
        if not any(array_type(one).dtype.name in FLOATS for one in maps.outputs):
            return NO_FLOATS
    if any(isinstance(use.operation, ConcatOp) for one in group.outputs for use in one.uses):
        return IN_PARTS
    between = _dependents(chain, group)
    if any(one is not value and one.owner in between for one in group.inputs):
        return NEEDED_BETWEEN
    return None


@dataclass(slots=True, eq=False)
class Division:
    """What of a group a product's kernel may compute, and what is left; used in a `with`, at whose end it goes.

    Args:
        maps: the maps that are written.
        rest: the others, which read what those give, None where there are none.
        heads: which of the group's results the maps give, in order.
    """

    maps: GroupOp
    rest: GroupOp | None
    heads: tuple[int, ...]

    def __enter__(self) -> GroupOp:
        """Return the maps."""
        return self.maps

    def __exit__(self, *_: object) -> None:
        """Let the ops go, which are in no graph."""
        for op in (self.rest, self.maps):
            if op is not None and op.parent is None:
                op.erase()


def divided(group: GroupOp, source: int) -> Division | None:
    """Divide a group into maps of a product and the rest, None where it cannot be.

    Args:
        group: the group, which stays as it is.
        source: the place of the product among its operands.
    """
    argument = group.body.block.args[source]
    given = _yielded(group)
    own = own_place(dims_of(argument))
    heads = tuple(
        at for at, value in enumerate(given) if _axes(_result_place(value)) == _axes(own) and _is_mapped(value)
    )
    inside = _cone([given[at] for at in heads], ())
    if argument not in inside:
        return None
    left = [at for at in range(len(given)) if at not in heads]
    maps = _copied(group, inside, [given[at] for at in heads], {})
    if not left:
        return Division(maps, None, heads)
    known = {given[at]: output for at, output in zip(heads, maps.outputs, strict=True)}
    behind = _cone([given[at] for at in left], known)
    again = (one.owner for one in behind if one in inside)
    if argument in behind or any(isinstance(op, MapOp | CastOp) for op in again):
        maps.erase()
        return None
    rest = _copied(group, behind, [given[at] for at in left], known)
    rest.attributes[ROWS] = group.attributes[ROWS]
    return Division(maps, rest, heads)


def _axes(place: Place | None) -> Place | None:
    """Return a place without dimensions of size 1."""
    return None if place is None else tuple(at for at in place if at != NONE)


def _is_mapped(value: SSAValue) -> bool:
    """Return whether a value is computed by maps alone."""
    owners = (one.owner for one in _cone([value], ()))
    return all(isinstance(op, Block | MapOp | CastOp | FullOp | SizeOp) or is_view(op) for op in owners)


def _cone(values: Sequence[SSAValue], known: Container[SSAValue]) -> dict[SSAValue, None]:
    """Return all that values are computed of, with them, as far as it is not known."""
    found: dict[SSAValue, None] = {}
    work = [*values]
    while work:
        value = work.pop()
        if value not in found and value not in known:
            found[value] = None
            work += value.owner.operands if isinstance(value.owner, Operation) else ()
    return found


def _copied(
    group: GroupOp, inside: Container[SSAValue], given: Sequence[SSAValue], known: Mapping[SSAValue, SSAValue]
) -> GroupOp:
    """Return a group of some of another one's ops, which also reads what is known."""
    pairs = zip(group.inputs, group.body.block.args, strict=True)
    read: dict[SSAValue, SSAValue] = {argument: value for value, argument in pairs if argument in inside}
    read |= known
    made = GroupOp([*read.values()], [value.type for value in given])
    made.location = group.location
    made.attributes |= {AXES: group.attributes[AXES], ROWS: words(())}
    values: dict[SSAValue, SSAValue] = dict(zip(read, made.body.block.args, strict=True))
    for op in group.body.block.ops:
        if not isinstance(op, YieldOp) and any(result in inside for result in op.results):
            copy = op.clone(values)
            copy.location = op.location
            made.body.block.add_op(copy)
            values.update(zip(op.results, copy.results, strict=True))
    made.body.block.add_op(YieldOp([values[value] for value in given]))
    return made


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


def put_maps(op: ProductOp) -> tuple[ProductOp, GroupOp | None]:
    """Leave in a product what its kernel may compute, and put the rest of the group behind it; return both."""
    contract, group = dissolved(op)
    value = next(one for one in group.inputs if _root(one) is contract)
    division = divided(group, group.inputs.index(value))
    block = group.parent_block()
    assert division is not None, "else it is in no product"
    assert block is not None, "it is in the graph"
    made = [one for one in (division.maps, division.rest) if one is not None]
    block.insert_ops_before(made, group)
    left = [at for at in range(len(group.outputs)) if at not in division.heads]
    outputs = [output for one in made for output in one.outputs]
    for at, output in zip((*division.heads, *left), outputs, strict=True):
        group.outputs[at].replace_all_uses_with(output)
    group.detach()
    group.erase()
    return _put(division.maps, value, _chain(value)), division.rest
