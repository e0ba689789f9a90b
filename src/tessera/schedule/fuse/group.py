"""What is known of a group while a graph is cut."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import field

from xdsl.ir import Operation, SSAValue

from tessera.data import dataclass
from tessera.ir.graph.takes import TakeOp
from tessera.schedule.fuse.places import LOOSE, Place, is_view, root_of, source_place
from tessera.target.dims import Dim


@dataclass(slots=True, eq=False)
class Group:
    """Ops that are to be one kernel.

    Args:
        axes: the size of each axis.
        places: where its ops work, in order.
        reduced: the axes that reductions go along.
        parts: the axis along which neighbours are combined, and how many of them.
        repeated: ops of other groups that it computes again.
    """

    axes: list[Dim]
    places: dict[Operation, Place] = field(default_factory=dict[Operation, Place])
    reduced: frozenset[int] = frozenset()
    parts: tuple[int, int] | None = None
    repeated: set[Operation] = field(default_factory=set[Operation])
    _reads: set[SSAValue] = field(default_factory=set[SSAValue])
    _read_by: tuple[int, int] = 0, 0
    """How many ops of the group, and of others, `_reads` is of."""

    def add(self, op: Operation, place: Place) -> None:
        """Put an op last."""
        reads = self.reads()
        self.places[op] = place
        reads.difference_update(op.results)
        reads.update(self._read([*reversed(op.operands)], ()))
        self._read_by = len(self.places), len(self.repeated)

    def reads(self) -> set[SSAValue]:
        """Return what it reads from memory, in any order; an op more is looked at by itself. Nobody may change it."""
        of = len(self.places), len(self.repeated)
        if of != self._read_by:
            self._reads, self._read_by = set(self.inputs()), of
        return self._reads

    def inputs(self, absorbed: Container[Operation] = ()) -> dict[SSAValue, None]:
        """Return what it reads from memory, where some ops are computed by all who read them."""
        return self._read([operand for op in reversed(self.places) for operand in reversed(op.operands)], absorbed)

    def _read(self, work: list[SSAValue], absorbed: Container[Operation]) -> dict[SSAValue, None]:
        """Return what is read for some values, the last one first."""
        found: dict[SSAValue, None] = {}
        seen = set[SSAValue]()
        while work:
            value = work.pop()
            owner = value.owner
            if value in seen or owner in self.places or isinstance(owner, LOOSE):
                continue
            seen.add(value)
            if isinstance(owner, Operation) and (is_view(owner) or owner in absorbed or owner in self.repeated):
                work += reversed(owner.operands)
            else:
                found[value] = None
        return found


def reads_of(group: Group) -> Iterator[tuple[SSAValue, Place]]:
    """Yield what a group reads from memory, with the place of each."""
    taken = [op for op in group.places if isinstance(op, TakeOp)]
    yield from ((root_of(op.source), ()) for op in taken)
    values = {op: op.indices if isinstance(op, TakeOp) else op.operands for op in group.places}
    work = [(value, place) for op, place in group.places.items() for value in values[op]]
    while work:
        value, place = work.pop()
        owner = value.owner
        if is_view(owner):
            assert isinstance(owner, Operation), "views are ops"
            work.append((owner.operands[0], source_place(owner, place)))
        elif owner not in group.places and not isinstance(owner, LOOSE):
            yield value, place
