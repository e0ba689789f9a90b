"""Lets ops that move elements read memory: what they select of computed arrays is computed of what they select there.

    %y = tessera_graph.map "sub"(%x, %b)              %t = tessera_graph.take %x at %i …
    %t = tessera_graph.take %y at %i …       →        %u = tessera_graph.take %b at %i …
                                                      %z = tessera_graph.map "sub"(%t, %u)

A take of anything else reads an array that is written before, `tessera_graph.stored`. Placing an array among zeros is
a take, too, as what lies outside of an array reads as 0.
"""

from __future__ import annotations

from fractions import Fraction
from functools import reduce

from xdsl.ir import Operation, SSAValue

from tessera.ir.graph.points import CastOp, IotaOp, MapOp
from tessera.ir.graph.structure import CallOp, GraphOp
from tessera.ir.graph.sums import ContractOp
from tessera.ir.graph.takes import StoredOp, TakeOp
from tessera.ir.graph.types import ZERO, array_type, dims_of
from tessera.ir.graph.views import ConcatOp, PlaceOp, SliceOp, TransposeOp
from tessera.numerics.dtypes import i64
from tessera.numerics.functions import FUNCTIONS
from tessera.schedule.fuse.places import LOOSE, is_view, root_of
from tessera.schedule.fuse.selection import Selector, selection_of, share_of, take_of

Move = SliceOp | TakeOp

MOST_AGAIN = 64
"""Ops that are computed for a selection at most."""
AGAIN = 64
"""The cost (`numerics.functions`) of all elements that are selected, for each element that there is."""
TINY = Fraction(1, 4)
"""The share of elements that are computed for a selection though all are needed elsewhere, too."""
UNKNOWN = Fraction(4)
"""The share of elements that are selected where it depends on a call's sizes."""


def move(graph: GraphOp) -> None:
    """Rewrite the slices and takes of a graph."""
    for op in list(graph.body.block.ops):
        if isinstance(op, PlaceOp):
            _place(op)
    for op in list(graph.body.block.ops):
        if isinstance(op, Move) and not isinstance(op.source.owner, StoredOp):
            _move(op)


def _move(op: Move) -> None:
    """Let an op read memory."""
    region = _worthwhile(op)
    computed = bool(region) or isinstance(root_of(op.source).owner, LOOSE)
    if isinstance(op, SliceOp) and not computed:
        return
    found = Selector(op, region).selected(op.source, selection_of(op))
    op.result.replace_all_uses_with(found)
    op.detach()
    op.erase()


def _place(op: PlaceOp) -> None:
    """Let placing an array be taking it at shifted places; what is computed is computed there, and 0 around it."""
    selector, whole = Selector(op, ()), dims_of(op.result)
    places: list[int | SSAValue] = []
    inside: list[SSAValue] = []
    for axis, (size, first, step) in enumerate(zip(dims_of(op.source), op.first, op.apart, strict=True)):
        if (size, first, step) == (whole[axis], ZERO, 1):
            places.append(axis)
            continue
        at = selector.add(IotaOp(whole, axis, i64))
        at = at if first == ZERO else selector.apply("sub", at, selector.size(first, i64, whole))
        if step != 1:
            inside.append(selector.apply("eq", selector.apply("mod", at, step), 0))
            at = selector.apply("floordiv", at, step)
        if not _is_memory(op.source):
            inside.append(selector.apply("ge", at, 0))
            inside.append(selector.apply("lt", at, selector.size(size, i64, whole)))
        places.append(at)
    found = selector.add(take_of(op.source, places, whole)) if op.source.type != op.result.type else op.source
    if inside:
        here = reduce(lambda one, other: selector.apply("and", one, other), inside)
        zero = selector.full(0, array_type(op.source).dtype, whole)
        found = selector.add(MapOp("select", [here, found, zero]))
    op.result.replace_all_uses_with(found)
    op.detach()
    op.erase()


def _is_memory(value: SSAValue) -> bool:
    """Return whether a value is read from memory as it lies, so that what is outside reads as 0."""
    owner = value.owner
    if isinstance(owner, SliceOp | TransposeOp):
        return _is_memory(owner.source)
    return not isinstance(owner, Operation) or isinstance(owner, CallOp | ContractOp | ConcatOp)


def _worthwhile(op: Move) -> set[Operation]:
    """Return the ops that are computed for a selection, rather than for all before it: none if that is dear."""
    root = root_of(op.source).owner
    if not isinstance(root, MapOp | CastOp | TakeOp):
        return set()
    share = _share(op)
    tiny = share <= TINY
    moves = dict[Move, None]()
    if not (tiny or _is_counted(root) or _ends_in_moves(root, moves)):
        return set()
    region = _region(root, tiny)
    total, cost = sum(map(_share, moves), Fraction(0)), sum(map(_cost, region))
    dear = not tiny and total > 1 and cost * total > AGAIN
    return set() if dear or len(region) > MOST_AGAIN else region


def _region(root: Operation, tiny: bool) -> set[Operation]:
    """Return the maps that an op is computed of, of those that are needed elsewhere only for a tiny selection."""
    found: set[Operation] = set()
    work: list[SSAValue] = [root.results[0]]
    while work and len(found) <= MOST_AGAIN:
        op = work.pop().owner
        if not isinstance(op, Operation) or op in found:
            continue
        if isinstance(op, MapOp | CastOp | TakeOp) and (
            op is root or tiny or _is_counted(op) or _ends_in_moves(op, {})
        ):
            found.add(op)
            work += op.operands
        elif is_view(op):
            work += op.operands
    return found


def _is_counted(op: Operation) -> bool:
    """Return whether an op follows from places and numbers alone."""
    if isinstance(op, MapOp | CastOp) or is_view(op):
        return all(isinstance(arg.owner, Operation) and _is_counted(arg.owner) for arg in op.operands)
    return isinstance(op, LOOSE)


def _ends_in_moves(op: Operation, moves: dict[Move, None]) -> bool:
    """Return whether all that is computed of an op's result is only selected from; note by which ops."""
    for use in op.results[0].uses:
        user = use.operation
        if isinstance(user, Move) and use.index == 0:
            moves[user] = None
        elif not (isinstance(user, MapOp | CastOp | TakeOp) or is_view(user)) or not _ends_in_moves(user, moves):
            return False
    return op.results[0].first_use is not None


def _share(op: Move) -> Fraction:
    share = share_of(selection_of(op), dims_of(op.source))
    return UNKNOWN if share is None else share


def _cost(op: Operation) -> int:
    return FUNCTIONS[op.fn.data].cost if isinstance(op, MapOp) else 1
