"""What the kernels that read a group compute again: its results are not read then, or in a narrower form.

Kernels may round one number in several ways, as products and sums are contracted. What is compared for equality, as the
gradient of a maximum compares all elements with it, is therefore computed once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator

from xdsl.ir import Block, Operation, SSAValue

from tessera.ir.graph.deciding import maps_before
from tessera.ir.graph.points import CastOp, MapOp
from tessera.ir.graph.sums import PartsOp, ReduceOp
from tessera.ir.graph.types import array_type
from tessera.numerics.functions import FUNCTIONS
from tessera.schedule.fuse.apart import MOST_INPUTS
from tessera.schedule.fuse.group import Group, reads_of
from tessera.schedule.fuse.places import LOOSE, NONE, is_view, origin_of, root_of

MOST_REPEATED = 12
REPEATED = 64
"""The cost of ops (`numerics.functions`) that readers along more axes compute for themselves."""
SMALL = 16
"""The cost of ops that readers compute again where they read fewer bytes in this way."""
CHEAP = 8
"""The cost of ops that any readers compute for themselves, rather than read what they give."""


class Repeats:
    """What readers of groups compute again.

    Args:
        home: the groups of ops, of which those are left out that all readers have for themselves.
        once: ops that are computed once.
    """

    def __init__(self, home: dict[Operation, Group], once: Container[Operation]) -> None:
        self._home = home
        self._once = once

    def repeat_maps(self) -> None:
        """Let readers compute again what follows from one array by few maps: they need not read what a group writes.

        Groups of maps alone are read for what they write, but for places, which follow from no array. What others read
        as well is written, and read.
        """
        for group in list(dict.fromkeys(self._home.values())):
            read = [op for op in group.places if isinstance(op, MapOp | CastOp) and self._readers_of(op, group)]
            computed = {op for op in group.places if not self._is_written(op)} if read else set[Operation]()
            for op in read:
                self._repeat(op, group, computed)

    def _repeat(self, op: Operation, group: Group, computed: Container[Operation]) -> None:
        readers = self._readers_of(op, group)
        chain = chain_of(op.results[0], computed)
        if not chain or any(one in self._once for one in chain):
            return
        alone = Group(group.axes, {one: group.places[one] for one in group.places if one in chain})
        if alone.inputs() and not (group.reduced or group.parts):
            return
        full = [value for value, place in dict.fromkeys(reads_of(alone)) if len(set(place) - {NONE}) == len(group.axes)]
        read = {reader: reader.inputs() for reader in readers}
        more = sum(_bits(value) for inputs in read.values() for value in full if value not in inputs)
        small = sum(map(_cost, chain)) <= SMALL and more < _bits(op.results[0]) * (1 + len(readers))
        fits = all(len({*inputs, *alone.inputs()}) <= MOST_INPUTS for inputs in read.values())
        if small and fits:
            for reader in readers:
                reader.repeated |= chain

    def absorb(self) -> set[Operation]:
        """Leave out groups that all who read them may as well compute; return their ops."""
        absorbed = set[Operation]()
        for group in reversed(list(dict.fromkeys(self._home.values()))):
            if self._is_cheap(group, absorbed):
                absorbed |= group.places.keys()
                for op in group.places:
                    del self._home[op]
        return absorbed

    def widen_again(self, absorbed: set[Operation]) -> None:
        """Let readers widen what a group writes: it writes the narrow form."""
        readers = defaultdict[Operation, list[Group]](list)
        for group in dict.fromkeys(self._home.values()):
            for value in group.inputs(absorbed):
                if isinstance(value.owner, CastOp) and _bits(value.owner.source) < _bits(value):
                    readers[value.owner].append(group)
        for op, groups in readers.items():
            if not self._is_written(op, absorbed):
                for group in groups:
                    group.repeated.add(op)

    @staticmethod
    def _users(ops: Iterable[Operation], absorbed: Container[Operation] = ()) -> Iterator[Operation]:
        """Yield what reads what some ops give, through views and what each reader has for itself."""
        work = [use.operation for op in ops for use in op.results[0].uses]
        while work:
            user = work.pop()
            if is_view(user) or user in absorbed:
                work += [use.operation for use in user.results[0].uses]
            else:
                yield user

    def _readers_of(self, op: Operation, group: Group) -> set[Group]:
        """Return the groups that read what an op of a group gives, none where anything else does, or nothing."""
        homes = [self._home.get(user) for user in self._users([op])]
        return set[Group]() if None in homes else {home for home in homes if home is not None} - {group}

    def _is_written(self, op: Operation, absorbed: Container[Operation] = ()) -> bool:
        """Return whether anything but groups reads what an op gives, so that it is in memory."""
        return any(user not in self._home for user in self._users([op], absorbed))

    def _is_cheap(self, group: Group, absorbed: set[Operation]) -> bool:
        """Return whether all who read a group may as well compute it: it is small, or reads no more than it writes."""
        if not all(isinstance(op, MapOp | CastOp) for op in group.places) or len(group.places) > MOST_REPEATED:
            return False
        if any(op in self._once for op in group.places):
            return False
        readers = self._readers(group, absorbed)
        if not readers:
            return False
        reads, total = group.inputs(absorbed), sum(map(_cost, group.places))
        if any(len({*reader.inputs(absorbed), *reads}) > MOST_INPUTS for reader in readers):
            return False
        small = all(len(group.axes) < len(reader.axes) for reader in readers)
        thin = len(reads) <= 1 and all(_bits(value) <= _bits(op.results[0]) for value in reads for op in group.places)
        return (small or (thin and total <= CHEAP)) and total <= REPEATED

    def _readers(self, group: Group, absorbed: set[Operation]) -> set[Group] | None:
        """Return the groups that read a group's results, None where anything else does."""
        users = self._users(group.places, absorbed)
        homes = [self._home.get(user) for user in users if user not in group.places]
        return None if None in homes else {home for home in homes if home is not None}


def compared(block: Block) -> set[Operation]:
    """Return the maps that compute floats which a graph compares for equality with others that are computed, too.

    Another graph compares what this one returns, and the maxima of it. What all kernels round alike is left out.
    """
    work = list[SSAValue]()
    returned = set[SSAValue]() if block.last_op is None else {*map(root_of, block.last_op.operands)}
    for op in block.ops:
        if isinstance(op, MapOp) and op.fn.data in ("eq", "ne"):
            work += () if any(isinstance(root_of(arg).owner, LOOSE) for arg in op.args) else op.args
        elif isinstance(op, ReduceOp | PartsOp) and op.fn.data in ("max", "min") and root_of(op.source) in returned:
            work.append(op.source)
    owners = [root_of(value).owner for value in work if array_type(value).dtype.is_float]
    maps = [owner for owner in owners if isinstance(owner, MapOp | CastOp)]
    chains = [{one, *maps_before(one)} for one in maps]
    return set[Operation]().union(*(chain for chain in chains if any(map(_may_differ, chain))))


def _may_differ(op: Operation) -> bool:
    """Return whether kernels may round an op in several ways: sums of products, and functions with several forms."""
    if not isinstance(op, MapOp):
        return False
    record = FUNCTIONS[op.fn.data]
    if record.special or record.ulp is not None:
        return True
    if op.fn.data not in ("add", "sub"):
        return False
    sources = [origin_of(arg).owner for arg in op.args]
    return any(isinstance(one, MapOp) and one.fn.data == "mul" for one in sources)


def chain_of(value: SSAValue, within: Container[Operation]) -> set[Operation]:
    """Return the maps that compute a value from memory and from results of reductions, where they are few.

    Args:
        value: the value.
        within: ops that are computed; what others give is in memory.
    """
    found = set[Operation]()
    work = [value]
    while work:
        owner = work.pop().owner
        if not isinstance(owner, Operation) or owner in found:
            continue
        if isinstance(owner, MapOp | CastOp) and owner in within:
            found.add(owner)
            work += owner.operands
        elif is_view(owner):
            work += owner.operands
        if len(found) > MOST_REPEATED * 2:
            return set()
    return found


def _cost(op: Operation) -> int:
    return FUNCTIONS[op.fn.data].cost if isinstance(op, MapOp) else 1


def _bits(value: SSAValue) -> int:
    return array_type(value).dtype.bits
