"""Concatenations: groups write their parts in place, so each part is an array of its own that nothing else reads.

%a = tessera_graph.place %x at ["0"] … -> <["2*N"]>
%b = tessera_graph.place %y at ["N"] … -> <["2*N"]>      →     %s = tessera_graph.concat %x, %y along 0
%s = tessera_graph.map "add"(%a, %b)

%c = tessera_graph.concat %x, %y along 0                       %u = tessera_graph.map "exp"(%x)
%z = tessera_graph.map "exp"(%c)                         →     %v = tessera_graph.map "exp"(%y)
                                                               %z = tessera_graph.concat %u, %v along 0
"""

from __future__ import annotations

from xdsl.ir import Operation, SSAValue

from tessera.ir.graph.points import CastOp, MapOp
from tessera.ir.graph.structure import GraphOp
from tessera.ir.graph.takes import TakeOp
from tessera.ir.graph.types import ONE, ZERO, array_type, dims_of, ordered
from tessera.ir.graph.views import BroadcastOp, ConcatOp, PlaceOp, ReshapeOp, SliceOp, TransposeOp
from tessera.numerics.dtypes import DType
from tessera.schedule.fuse.places import LIBRARY, LOOSE, PLACED, root_of
from tessera.schedule.fuse.selection import Along, Selection, Selector, of_others
from tessera.target.dims import Dim

MOST_PARTS = 8
"""Parts of a concatenation that is made of a sum, that maps are computed in, or whose views groups copy."""
MOST_AGAIN = 16
"""Ops that are computed in parts with them."""


def join(graph: GraphOp) -> None:
    """Make concatenations of sums of placed arrays, and compute what follows concatenations in their parts."""
    for op in list(graph.body.block.ops):
        if isinstance(op, MapOp) and op.fn.data == "add" and op.result.first_use is not None:
            _join_sum(op)
    for op in list(graph.body.block.ops):
        if isinstance(op, MapOp | CastOp):
            _push(op)
    for op in list(graph.body.block.ops):
        if isinstance(op, ConcatOp):
            _narrow(op)


def own_parts(graph: GraphOp) -> None:
    """Copy parts that something else reads, or that no group computes, where a group makes another part.

    Groups copy views of a few parts too: libraries copy rows that are not contiguous one after the other.
    """
    for op in [op for op in graph.body.block.ops if isinstance(op, ConcatOp)]:
        if not _flatten(op):
            continue
        is_apart = len(op.sources) <= MOST_PARTS and any(map(_is_apart, op.sources))
        if not is_apart and not any(_is_own(source) or _is_computed(source) for source in op.sources):
            continue
        for place, source in enumerate(op.sources):
            if not _is_own(source):
                op.operands[place] = _copied(op, source)


def _copied(op: ConcatOp, part: SSAValue) -> SSAValue:
    """Return a copy of a part of a concatenation, which a group makes."""
    return Selector(op, ()).add(CastOp(part, array_type(part).dtype))


def _flatten(op: ConcatOp) -> bool:
    """Leave parts without elements out, and take parts of parts that are joined alike; return if several are left."""
    axis, parts, inner = op.axis.data, list[SSAValue](), list[ConcatOp]()
    for source in op.sources:
        owner = source.owner
        if isinstance(owner, ConcatOp) and owner.axis.data == axis and source.has_one_use():
            inner.append(owner)
            parts += owner.sources
        else:
            parts.append(source)
    some = [part for part in parts if dims_of(part)[axis] != ZERO]
    if len(some) < 2:
        if some:  # a concatenation has memory of its own
            op.result.replace_all_uses_with(_copied(op, some[0]))
        return False
    if some != list(op.sources):
        op.operands = some
        for one in inner:  # their parts are read by this one alone
            one.detach()
            one.erase()
    return True


def _is_apart(value: SSAValue) -> bool:
    """Return whether a part is a view whose elements do not lie one after the other."""
    owner = value.owner
    match owner:
        case ReshapeOp():
            return _is_apart(owner.source)
        case BroadcastOp() | TransposeOp():
            return True
        case SliceOp():
            return any(step != 1 for step in owner.apart) or dims_of(value)[1:] != dims_of(owner.source)[1:]
        case _:
            return False


def _is_own(value: SSAValue) -> bool:
    """Return whether groups write a part, or all parts of it, for a concatenation alone."""
    owner = value.owner
    if isinstance(owner, ConcatOp):
        return value.has_one_use() and all(map(_is_own, owner.sources))
    return isinstance(owner, PLACED) and _is_computed(value) and value.has_one_use()


def _is_computed(value: SSAValue) -> bool:
    """Return whether a group computes a value, or what it is a view of."""
    owner = value.owner
    if isinstance(owner, ReshapeOp | TransposeOp):
        return _is_computed(owner.source)
    return isinstance(owner, MapOp | CastOp | TakeOp)


def _join_sum(op: MapOp) -> None:
    """Let a sum of arrays that are placed side by side be their concatenation."""
    parts: list[PlaceOp] = []
    if _is_sum(_reader(op.result)):
        return  # a part of a larger sum
    dtypes = {array_type(op.result).dtype}
    if not all(_collect(arg, parts, dtypes) for arg in op.args) or not _keep(dtypes, parts):
        return
    axis = _axis_of(parts)
    if axis is None:
        return
    at, order = ZERO, list[SSAValue]()
    while len(order) < len(parts):
        found = [part for part in parts if ordered(part.first[axis]) == ordered(at) and part.source not in order]
        if len(found) != 1:
            return
        order.append(found[0].source)
        at = at + dims_of(found[0].source)[axis]
    if ordered(at) != dims_of(op.result)[axis]:
        return
    selector = Selector(op, ())
    joined = selector.add(ConcatOp(order, axis))
    dtype = array_type(joined).dtype
    for user in [use.operation for use in op.result.uses]:
        if isinstance(user, CastOp) and array_type(user.result).dtype == dtype:
            user.result.replace_all_uses_with(joined)
    wide = joined if array_type(op.result).dtype == dtype else selector.add(CastOp(joined, array_type(op.result).dtype))
    op.result.replace_all_uses_with(wide)


def _reader(value: SSAValue) -> Operation | None:
    """Return the only op that reads a value, or a cast of it."""
    user = value.get_user_of_unique_use()
    return _reader(user.result) if isinstance(user, CastOp) else user


def _is_sum(op: Operation | None) -> bool:
    return isinstance(op, MapOp) and op.fn.data == "add"


def _keep(dtypes: set[DType], parts: list[PlaceOp]) -> bool:
    """Return whether all parts have one dtype, whose numbers the others have, too: 16-bit floats are added in f32."""
    own, *others = {array_type(part.source).dtype for part in parts}
    return not others and all(other.is_float and other.bits > own.bits for other in dtypes - {own})


def _collect(value: SSAValue, parts: list[PlaceOp], dtypes: set[DType]) -> bool:
    """Add the placed arrays that a value is the sum of, and the dtypes on the way; return whether it is one."""
    owner = value.owner
    if isinstance(owner, CastOp):
        dtypes.add(array_type(value).dtype)
        return _collect(owner.source, parts, dtypes)
    if isinstance(owner, PlaceOp):
        parts.append(owner)
        return True
    return (
        len(parts) < MOST_PARTS
        and isinstance(owner, MapOp)
        and _is_sum(owner)
        and all(_collect(arg, parts, dtypes) for arg in owner.args)
    )


def _axis_of(parts: list[PlaceOp]) -> int | None:
    """Return the only dimension along which arrays are smaller than what they are placed in, None for several."""
    found = set[int]()
    for part in parts:
        dims = zip(dims_of(part.source), dims_of(part.result), part.first, part.apart, strict=True)
        for axis, (own, whole, first, step) in enumerate(dims):
            if step != 1:
                return None
            if own != whole or first != ZERO:
                found.add(axis)
    return found.pop() if len(found) == 1 else None


def _push(op: MapOp | CastOp) -> None:
    """Compute what is computed of a concatenation in its parts."""
    joins = [arg.owner for arg in op.operands if isinstance(arg.owner, ConcatOp)]
    if not joins:
        return
    first, axis = joins[0], joins[0].axis.data
    sizes = [dims_of(source)[axis] for source in first.sources]
    again = set[Operation]()
    if len(sizes) > MOST_PARTS or not all(_splits(arg, axis, sizes, again) for arg in op.operands):
        return
    selector = Selector(op, again)
    parts: list[SSAValue] = []
    at = ZERO
    for number, size in enumerate(sizes):
        args = [_part(selector, arg, axis, number, at, size) for arg in op.operands]
        parts.append(selector.add(of_others(op, args)))
        at = at + size
    op.result.replace_all_uses_with(selector.add(ConcatOp(parts, axis)))


def _narrow(op: ConcatOp) -> None:
    """Let parts that are the wider form of others be joined before they are cast: nobody writes the wider form down."""
    if op.result.first_use is None:
        return
    casts = [source.owner for source in op.sources if isinstance(source.owner, CastOp)]
    narrow = {array_type(cast.source).dtype for cast in casts}
    wide = array_type(op.result).dtype
    if len(casts) < len(op.sources) or len(narrow) > 1 or narrow.pop().bits >= wide.bits:
        return
    selector = Selector(op, ())
    joined = selector.add(ConcatOp([cast.source for cast in casts], op.axis.data))
    op.result.replace_all_uses_with(selector.add(CastOp(joined, wide)))


def _splits(value: SSAValue, axis: int, sizes: list[Dim], again: set[Operation]) -> bool:
    """Return whether parts of a value are parts of concatenations alike, or can be computed of memory.

    Args:
        value: the value.
        axis: the dimension along which it is parted.
        sizes: those of the parts.
        again: gets the maps that are computed of parts.
    """
    op = value.owner
    if isinstance(op, ConcatOp):
        return op.axis.data == axis and [dims_of(source)[axis] for source in op.sources] == sizes
    return _is_read(value, axis, again)


def _is_read(value: SSAValue, axis: int, again: set[Operation]) -> bool:
    op = value.owner
    match op:
        case BroadcastOp():
            of = op.places.index(axis) if axis in op.places else None
            return of is None or dims_of(op.source)[of] == ONE or _is_read(op.source, of, again)
        case TransposeOp():
            return _is_read(op.source, op.permutation[axis], again)
        case ReshapeOp():
            if op.places is None:
                return not _is_computed(root_of(op.source))
            of = op.places[axis]
            return of is not None and _is_read(op.source, of, again)
        case SliceOp():
            return not _is_computed(root_of(op.source))
        case MapOp() | CastOp():
            if op in again:
                return True
            again.add(op)
            return len(again) <= MOST_AGAIN and all(_is_read(arg, axis, again) for arg in op.operands)
        case Operation():
            return isinstance(op, (*LOOSE, *LIBRARY))
        case _:
            return True


def _part(selector: Selector, value: SSAValue, axis: int, number: int, at: Dim, size: Dim) -> SSAValue:
    """Return one part of a value."""
    if isinstance(value.owner, ConcatOp):
        return value.owner.sources[number]
    dims = list(dims_of(value))
    dims[axis] = size
    along = tuple(Along(each, at if each == axis else ZERO) for each in range(len(dims)))
    return selector.selected(value, Selection(along, tuple(dims)))
