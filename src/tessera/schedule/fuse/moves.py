"""Lets ops that move elements read memory: what they select of computed arrays is computed of what they select there.

    %y = tessera_graph.map "sub"(%x, %b)              %t = tessera_graph.take %x at %i …
    %t = tessera_graph.take %y at %i …       →        %u = tessera_graph.take %b at %i …
                                                      %z = tessera_graph.map "sub"(%t, %u)

A take of anything else reads an array that is written before, `tessera_graph.stored`. Placing an array among zeros is
a take, too, as what lies outside of an array reads as 0. A few cheap maps of an array in memory are computed for what
is selected though all of them is needed elsewhere, too.
"""

from __future__ import annotations

from fractions import Fraction
from functools import reduce

from xdsl.ir import Operation, SSAValue, Use

from tessera.ir.graph.points import CastOp, IotaOp, MapOp
from tessera.ir.graph.structure import GraphOp
from tessera.ir.graph.takes import StoredOp, TakeOp
from tessera.ir.graph.types import ZERO, array_type, dims_of
from tessera.ir.graph.views import ConcatOp, PlaceOp, SliceOp, TransposeOp
from tessera.numerics.dtypes import i64
from tessera.numerics.functions import FUNCTIONS
from tessera.schedule.fuse.places import LIBRARY, LOOSE, is_view, root_of
from tessera.schedule.fuse.selection import Selector, selection_of, share_of, take_of

Move = SliceOp | TakeOp
_ERASED = (MapOp, CastOp, TakeOp, SliceOp, StoredOp)
"""Ops that are erased with their last reader."""

MOST_AGAIN = 64
"""Ops that are computed for a selection at most."""
AGAIN = 64
"""The cost (`numerics.functions`) of all elements that are selected, for each element that there is."""
TINY = Fraction(1, 4)
"""The share of elements that are computed for a selection though all are needed elsewhere, too."""
THIN_COST, MOST_THIN = 8, 4
"""The cost of maps, and how many they are, that are computed for a selection though all are needed elsewhere, too."""
UNKNOWN = Fraction(4)
"""The share of elements that are selected where it depends on a call's sizes."""


def move(graph: GraphOp) -> None:
    """Rewrite the slices and takes of a graph."""
    for op in list(graph.body.block.ops):
        if isinstance(op, PlaceOp):
            _place(op)
    for op in list(graph.body.block.ops):
        if isinstance(op, Move) and op.parent is not None and not isinstance(op.source.owner, StoredOp):
            _move(op)


def _move(op: Move) -> None:
    """Let an op read memory."""
    region = _worthwhile(op)
    computed = bool(region) or isinstance(root_of(op.source).owner, LOOSE)
    if isinstance(op, SliceOp) and not computed:
        return
    found = Selector(op, region).selected(op.source, selection_of(op))
    op.result.replace_all_uses_with(found)
    _erase(op)


def _erase(op: Operation) -> None:
    """Erase an op, and those that were for it alone: nothing is needed elsewhere for what nobody reads."""
    work: list[Operation] = [op]
    while work:
        op = work.pop()
        if op.parent is None or any(result.uses.get_length() for result in op.results):
            continue
        sources = [operand.owner for operand in op.operands]
        op.detach()
        op.erase()
        operations = (source for source in sources if isinstance(source, Operation))
        work += [source for source in operations if isinstance(source, _ERASED) or is_view(source)]


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
    moved = any(not isinstance(at, int) for at in places)
    found = selector.add(take_of(op.source, places, whole)) if moved else op.source
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
    return not isinstance(owner, Operation) or isinstance(owner, (*LIBRARY, ConcatOp))


def _worthwhile(op: Move) -> set[Operation]:
    """Return the ops that are computed for a selection, rather than for all before it: none if that is dear."""
    root = root_of(op.source).owner
    if not isinstance(root, MapOp | CastOp | TakeOp):
        return set()
    asked = _Asked()
    tiny = _share(op) <= TINY
    region = set[Operation]()
    if tiny or asked.is_counted(root) or asked.ends_in_moves(root):
        region = _region(root, tiny, asked)
    region = region or _thin(root)
    total = sum(map(_share, asked.moves), Fraction(0))
    dear = not tiny and total > 1 and sum(map(_cost, region)) * total > AGAIN
    return set() if dear or len(region) > MOST_AGAIN else region


def _region(root: Operation, tiny: bool, asked: _Asked) -> set[Operation]:
    """Return the maps that an op is computed of, of those that are needed elsewhere only for a tiny selection."""
    found: set[Operation] = set()
    seen: set[Operation] = set()
    work: list[SSAValue] = [root.results[0]]
    while work and len(found) <= MOST_AGAIN:
        op = work.pop().owner
        if not isinstance(op, Operation) or op in seen:
            continue
        seen.add(op)
        again = op is root or tiny or asked.is_counted(op) or asked.ends_in_moves(op)
        if isinstance(op, MapOp | CastOp | TakeOp) and again:
            found.add(op)
            work += op.operands
        elif is_view(op):
            work += op.operands
        else:
            found |= _thin(op)
    return found


def _thin(root: Operation) -> set[Operation]:
    """Return the few cheap maps that compute what is selected from an array in memory of no wider elements, if so.

    It is read in memory then, and what they compute of it is not written down for the selection.
    """
    found = set[Operation]()
    arrays = set[SSAValue]()
    work: list[SSAValue] = [root.results[0]]
    while work:
        value = work.pop()
        owner = value.owner
        if isinstance(owner, MapOp | CastOp):
            found.add(owner)
            work += owner.operands
        elif isinstance(owner, Operation) and is_view(owner):
            work += owner.operands
        elif not isinstance(owner, LOOSE):
            arrays.add(value)
        if len(found) > MOST_THIN:
            return set()
    bits = array_type(root.results[0]).dtype.bits
    is_thin = len(arrays) <= 1 and all(_is_memory(one) and array_type(one).dtype.bits <= bits for one in arrays)
    return found if is_thin and sum(map(_cost, found)) <= THIN_COST else set()


class _Asked:
    """What is known of ops: each is looked at once."""

    def __init__(self) -> None:
        self.moves: dict[Move, None] = {}
        """What selects of the ops that were asked for."""
        self._ends: dict[Operation, bool] = {}
        self._counted: dict[Operation, bool] = {}

    def ends_in_moves(self, op: Operation, depth: int = 0) -> bool:
        """Return whether all that is computed of an op's result is only selected from, a few ops on."""
        if op not in self._ends:
            uses = list(op.results[0].uses)
            few = bool(uses) and depth < MOST_AGAIN
            self._ends[op] = few and all(self._is_move(use, depth) for use in uses)
        return self._ends[op]

    def _is_move(self, use: Use, depth: int) -> bool:
        user = use.operation
        if isinstance(user, Move) and use.index == 0:
            self.moves[user] = None
            return True
        return (isinstance(user, MapOp | CastOp | TakeOp) or is_view(user)) and self.ends_in_moves(user, depth + 1)

    def is_counted(self, op: Operation, depth: int = 0) -> bool:
        """Return whether an op follows from places and numbers alone, by a few ops."""
        if op not in self._counted:
            owners = [arg.owner for arg in op.operands]
            known = depth < MOST_AGAIN and (isinstance(op, MapOp | CastOp) or is_view(op))
            follows = known and all(isinstance(one, Operation) and self.is_counted(one, depth + 1) for one in owners)
            self._counted[op] = follows or isinstance(op, LOOSE)
        return self._counted[op]


def _share(op: Move) -> Fraction:
    share = share_of(selection_of(op), dims_of(op.source))
    return UNKNOWN if share is None else share


def _cost(op: Operation) -> int:
    return FUNCTIONS[op.fn.data].cost if isinstance(op, MapOp) else 1
