"""Moves transposes towards the results of a graph, so that those that undo each other meet and vanish.

    %t = tessera_graph.transpose %x [0, 3, 1, 2]           %y = tessera_graph.map "exp"(%x)
    %y = tessera_graph.map "exp"(%t)                  →    %z = tessera_graph.call "f"(%y)
    %u = tessera_graph.transpose %y [0, 2, 3, 1]
    %z = tessera_graph.call "f"(%u)

What is computed of an array that is transposed is computed of the array as it lies: by maps, along other dimensions by
reductions, in parts. Other operands are transposed for it: repeated ones by repeating along other dimensions, arrays by
readers that take their elements in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue

from tessera.data import dataclass
from tessera.ir.graph.points import CastOp, IotaOp, MapOp
from tessera.ir.graph.structure import CallOp, GraphOp
from tessera.ir.graph.sums import ReduceOp
from tessera.ir.graph.takes import TakeOp
from tessera.ir.graph.types import ONE, ZERO, array_type, dims_of, product
from tessera.ir.graph.views import BroadcastOp, ConcatOp, PlaceOp, ReshapeOp, SliceOp, TransposeOp
from tessera.ir.passes import Pass
from tessera.schedule.fuse.places import LOOSE, insert, is_spread
from tessera.schedule.fuse.selection import of_others, take_of
from tessera.target.dims import Dim

Order = tuple[int, ...]
"""A permutation, as that of a transpose: for each dimension of the result that of the source."""

MOST_FREE = 16
"""Maps of numbers and repeated arrays that are written again in another order."""


@dataclass(frozen=True)
class TransposePass(Pass):
    """Moves the transposes of what calls give towards the results of graphs."""

    name = "transposes"

    def apply(self, module: ModuleOp) -> None:
        """Move those of all graphs of a module."""
        for graph in [op for op in module.ops if isinstance(op, GraphOp)]:
            ops = graph.body.block.ops
            move_transposes(graph, [op for op in ops if isinstance(op, TransposeOp) and _is_given(op.source)])


def _is_given(value: SSAValue) -> bool:
    return isinstance(value.owner, CallOp)


def move_transposes(graph: GraphOp, seeds: Iterable[TransposeOp]) -> set[Operation]:
    """Move some transposes of a graph as far as they go, and return those that are left of them.

    Args:
        graph: the graph, which is changed.
        seeds: the transposes.
    """
    mover = _Mover(seeds)
    for op in list(graph.body.block.ops):
        mover.visit(op)
    return mover.left()


def turn_reductions(graph: GraphOp) -> None:
    """Let reductions of transposed arrays, and of maps of such alone, go along the arrays as they lie.

    Those of small arrays whose results are repeated along the dimensions they are computed of stay: one kernel does all
    at once, in the order of the result.

    Args:
        graph: the graph, which is changed.
    """
    for op in [op for op in graph.body.block.ops if isinstance(op, ReduceOp)]:
        order = _shared_order(op.source)
        if order is None or (is_spread(op.result) and not _is_large(op.source)):
            continue
        mover = _Mover(())
        source = _as_it_lies(mover, op.source, inverse(order), op)
        left = [order[axis] for axis in range(len(order)) if axis not in op.reduced]
        made = ReduceOp(source, op.fn.data, sorted(order[axis] for axis in op.reduced))
        back = tuple(map(sorted(left).index, left))
        last = made if back == tuple(range(len(back))) else TransposeOp(made.result, back)
        insert([made] if last is made else [made, last], op)
        op.result.replace_all_uses_with(last.results[0])
        op.detach()
        op.erase()


def split_reductions(graph: GraphOp) -> None:
    """Let reductions along dimensions that maps have as several go along those: nothing lies between them then.

    Args:
        graph: the graph, which is changed.
    """
    for op in [op for op in graph.body.block.ops if isinstance(op, ReduceOp)]:
        whole = op.source.owner
        if isinstance(whole, ReshapeOp) and isinstance(whole.source.owner, MapOp | CastOp):
            axes = _axes_before(whole, op.reduced)
            if axes:
                made = ReduceOp(whole.source, op.fn.data, axes)
                back = ReshapeOp(made.result, dims_of(op.result))
                insert([made, back], op)
                op.result.replace_all_uses_with(back.result)
                op.detach()
                op.erase()


def _axes_before(op: ReshapeOp, reduced: Sequence[int]) -> list[int]:
    """Return the dimensions of a reshape's source that become some of its result, none where they become others too."""
    runs = runs_of(dims_of(op.source), dims_of(op.result)) or []
    found = [source for source, result in runs if any(axis in reduced for axis in result)]
    whole = [axis for _, result in runs if any(axis in reduced for axis in result) for axis in result]
    wide = [axis for axis in reduced if dims_of(op.result)[axis] != ONE]
    return sorted(axis for source in found for axis in source) if sorted(whole) == sorted(wide) else []


def _shared_order(value: SSAValue) -> Order | None:
    """Return how all arrays are transposed that a value is computed of, None where they lie as they are or differ."""
    found, work, seen = set[Order](), [value], set[SSAValue]()
    while work:
        one = work.pop()
        op = one.owner
        if one in seen or _is_free(one):
            continue
        seen.add(one)
        if isinstance(op, MapOp | CastOp):
            work += op.operands
        elif isinstance(op, TransposeOp) and not is_plain(dims_of(op.source), op.permutation):
            found.add(op.permutation)
        else:
            return None
    return found.pop() if len(found) == 1 else None


def _is_large(value: SSAValue) -> bool:
    count = product(dims_of(value))
    return not count.is_static or count.scale >= LARGE


def _as_it_lies(mover: _Mover, value: SSAValue, order: Order, before: Operation) -> SSAValue:
    """Return a value in another order, with the maps that it is computed by."""
    op = value.owner
    if not isinstance(op, MapOp | CastOp) or _is_free(value):
        return mover.turned(value, order, before)
    args = [_as_it_lies(mover, arg, order, before) for arg in op.operands]
    made = of_others(op, args)
    insert([made], before)
    return made.results[0]


def inverse(order: Sequence[int]) -> Order:
    """Return the permutation that undoes one."""
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def composed(first: Sequence[int], second: Sequence[int]) -> Order:
    """Return the permutation of a transpose of a transpose: the first one is nearer to the source."""
    return tuple(first[axis] for axis in second)


def is_plain(dims: Sequence[Dim], order: Sequence[int]) -> bool:
    """Return whether a transpose of an array of some sizes moves dimensions of size 1 only."""
    wide = [axis for axis in order if dims[axis] != ONE]
    return wide == sorted(wide)


LARGE = 1 << 14
"""Elements of arrays whose columns are read in much more time than their rows."""
Found = tuple[Operation, Order]
"""An op that computes a value in another order, and the transpose that gives the value."""


class _Mover:
    """Moves transposes in one graph.

    Args:
        seeds: the transposes that move.
    """

    def __init__(self, seeds: Iterable[TransposeOp]) -> None:
        self._moving = set[Operation](seeds)
        self._known: dict[tuple[SSAValue, Order], SSAValue] = {}

    def visit(self, op: Operation) -> None:
        """Let an op come before the transposes of its operands."""
        if isinstance(op, TransposeOp):
            self._meet(op)
            return
        if not any(self.is_moving(value) for value in op.operands):
            return
        rule = _RULES.get(type(op))
        found = None if rule is None else rule(self, op)
        if found is not None:
            made, order = found
            insert([made], op)
            self._replace(op, self._moved(made.results[0], order, op))

    def left(self) -> set[Operation]:
        """Drop the transposes that nothing reads, and return the others."""
        unread = {op for op in self._moving if op.results[0].first_use is None}
        for op in unread:
            op.detach()
            op.erase()
        return self._moving - unread

    def is_moving(self, value: SSAValue) -> bool:
        """Return whether a value is a transpose that moves."""
        return value.owner in self._moving

    def _meet(self, op: TransposeOp) -> None:
        """Make one transpose of two, or none where they undo each other."""
        if not self.is_moving(op.source) and op not in self._moving:
            return
        source, order = op.source, op.permutation
        before = source.owner
        if isinstance(before, TransposeOp) and before in self._moving:
            source, order = before.source, composed(before.permutation, order)
        elif not is_plain(dims_of(source), order):
            return
        self._replace(op, self._moved(source, order, op))

    def _moved(self, source: SSAValue, order: Order, before: Operation) -> SSAValue:
        """Return a transpose that moves on, or what it is where that moves no element."""
        if order == tuple(range(len(order))):
            return source
        made: Operation
        if is_plain(dims_of(source), order):
            made = ReshapeOp(source, [dims_of(source)[axis] for axis in order])
        else:
            made = TransposeOp(source, order)
            self._moving.add(made)
        insert([made], before)
        return made.results[0]

    def _replace(self, op: Operation, value: SSAValue) -> None:
        op.results[0].replace_all_uses_with(value)
        self._moving.discard(op)
        op.detach()
        op.erase()

    def order_of(self, values: Iterable[SSAValue]) -> Order:
        """Return the permutation of the first operand that is a moving transpose."""
        owners = (value.owner for value in values)
        return next(op.permutation for op in owners if isinstance(op, TransposeOp) and op in self._moving)

    def turned(self, value: SSAValue, order: Order, before: Operation) -> SSAValue:
        """Return the transpose of a value, written before an op: of what is repeated or follows from places, itself."""
        if order == tuple(range(len(order))):
            return value
        key = value, order
        if key not in self._known:
            self._known[key] = self._turned(value, order, before)
        return self._known[key]

    def _turned(self, value: SSAValue, order: Order, before: Operation) -> SSAValue:
        def add(op: Operation) -> SSAValue:
            insert([op], before)
            return op.results[0]

        dims = dims_of(value)
        turned = [dims[axis] for axis in order]
        op = value.owner
        if is_plain(dims, order):
            return add(ReshapeOp(value, turned))
        match op:
            case TransposeOp():
                return self.turned(op.source, composed(op.permutation, order), before)
            case BroadcastOp():
                places = [order.index(at) for at in op.places]
                inner = tuple(sorted(range(len(places)), key=places.__getitem__))
                return add(BroadcastOp(self.turned(op.source, inner, before), turned, sorted(places)))
            case IotaOp():
                return add(IotaOp(turned, order.index(op.axis.data), array_type(value).dtype))
            case ReshapeOp() if op.places is not None:
                of = [op.places[axis] for axis in order]
                wide = [axis for axis in of if axis is not None]
                ones = [axis for axis in range(len(dims_of(op.source))) if axis not in wide]
                return add(ReshapeOp(self.turned(op.source, (*wide, *ones), before), turned))
            case MapOp() if _is_free(value):
                return add(MapOp(op.fn.data, [self.turned(arg, order, before) for arg in op.args]))
            case CastOp() if _is_free(value):
                return add(of_others(op, [self.turned(op.source, order, before)]))
            case _:
                return add(TransposeOp(value, order))


def _is_free(value: SSAValue) -> bool:
    """Return whether a value follows from places, numbers and arrays of fewer dimensions that are repeated."""
    found, work = 0, [value]
    while work:
        op = work.pop().owner
        if isinstance(op, MapOp | CastOp) and found < MOST_FREE:
            found += 1
            work += op.operands
        elif not (isinstance(op, LOOSE) or (isinstance(op, BroadcastOp) and _is_repeated(op))):
            return False
    return True


def _is_repeated(op: BroadcastOp) -> bool:
    source = [dim for dim in dims_of(op.source) if dim != ONE]
    return len(source) < sum(dim != ONE for dim in dims_of(op.result))


# How ops compute what they compute of transposes


def _of_map(mover: _Mover, op: MapOp | CastOp) -> Found:
    order = mover.order_of(op.operands)
    args = [mover.turned(value, inverse(order), op) for value in op.operands]
    return of_others(op, args), order


def _of_reduce(mover: _Mover, op: ReduceOp) -> Found:
    order = mover.order_of([op.source])
    source = mover.turned(op.source, inverse(order), op)
    left = [order[axis] for axis in range(len(order)) if axis not in op.reduced]
    return ReduceOp(source, op.fn.data, sorted(order[axis] for axis in op.reduced)), tuple(
        map(sorted(left).index, left)
    )


def _of_broadcast(mover: _Mover, op: BroadcastOp) -> Found:
    order = mover.order_of([op.source])
    source = mover.turned(op.source, inverse(order), op)
    dims, whole = [*dims_of(op.result)], [*range(array_type(op.result).rank)]
    for axis, of in enumerate(order):
        dims[op.places[of]] = dims_of(op.result)[op.places[axis]]
        whole[op.places[axis]] = op.places[of]
    return BroadcastOp(source, dims, op.places), tuple(whole)


def _of_reshape(mover: _Mover, op: ReshapeOp) -> Found | None:
    """Reshape an array as it lies: each dimension that is split stays one, those that are joined stay neighbours."""
    order = mover.order_of([op.source])
    runs = runs_of(dims_of(op.source), dims_of(op.result))
    if runs is None:
        return None
    lies = inverse(order)
    wide = [axis for axis in lies if dims_of(op.source)[axis] != ONE]
    by_first = {source[0]: (source, result) for source, result in runs}
    found: list[int] = []
    at = 0
    while at < len(wide):
        source, result = by_first.get(wide[at], ([], []))
        if not source or wide[at : at + len(source)] != source:
            return None
        found += result
        at += len(source)
    dims = dims_of(op.result)
    found += [axis for axis, dim in enumerate(dims) if dim == ONE]
    source = mover.turned(op.source, lies, op)
    return ReshapeOp(source, [dims[axis] for axis in found]), inverse(found)


def runs_of(source: Sequence[Dim], result: Sequence[Dim]) -> list[tuple[list[int], list[int]]] | None:
    """Return which dimensions of a reshape's source, other than ones, become which of its result, None if unknown."""
    if ZERO in source:
        return None
    runs: list[tuple[list[int], list[int]]] = []
    rest = [axis for axis, dim in enumerate(result) if dim != ONE]
    axes: list[int] = []
    for axis, dim in enumerate(source):
        if dim == ONE:
            continue
        axes.append(axis)
        size = product(source[each] for each in axes)
        ends = (end for end in range(1, len(rest) + 1) if product(result[each] for each in rest[:end]) == size)
        end = next(ends, None)
        if end is not None:
            runs.append((axes, rest[:end]))
            axes, rest = [], rest[end:]
    return None if axes or rest else runs


def _of_slice(mover: _Mover, op: SliceOp | PlaceOp) -> Found:
    order = mover.order_of([op.source])
    lies = inverse(order)
    facts = [(op.first[axis], op.apart[axis], dims_of(op.result)[axis]) for axis in lies]
    return type(op)(mover.turned(op.source, lies, op), *map(list, zip(*facts, strict=True))), order


def _of_concat(mover: _Mover, op: ConcatOp) -> Found:
    order = mover.order_of(op.sources)
    return ConcatOp([mover.turned(value, inverse(order), op) for value in op.sources], order[op.axis.data]), order


def _of_take(mover: _Mover, op: TakeOp) -> Found:
    """Take elements of an array as it lies, in the order of the source or, of ordered ones, of the places."""
    rank, places = array_type(op.result).rank, op.places
    source, order = op.source, tuple(range(rank))
    owner = source.owner
    if isinstance(owner, TransposeOp) and mover.is_moving(source):
        lies = inverse(owner.permutation)
        source, places = owner.source, tuple(places[axis] for axis in lies)
        order = owner.permutation if len(lies) == rank else order
    else:
        order = mover.order_of(op.indices)
    lies = inverse(order)
    moved = [order[at] if isinstance(at, int) else mover.turned(at, lies, op) for at in places]
    return take_of(source, moved, [dims_of(op.result)[axis] for axis in lies]), order


_RULES: dict[type[Operation], Callable[[_Mover, Any], Found | None]] = {
    MapOp: _of_map,
    CastOp: _of_map,
    ReduceOp: _of_reduce,
    BroadcastOp: _of_broadcast,
    ReshapeOp: _of_reshape,
    SliceOp: _of_slice,
    PlaceOp: _of_slice,
    ConcatOp: _of_concat,
    TakeOp: _of_take,
}
