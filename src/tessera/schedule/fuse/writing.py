"""Writes a graph anew, with its groups."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence

from xdsl.dialects.builtin import ArrayAttr
from xdsl.ir import Block, Operation, SSAValue

from tessera.ir.attributes import text, words
from tessera.ir.graph.structure import GraphOp, GroupOp, YieldOp
from tessera.schedule.fuse.group import Group
from tessera.schedule.fuse.places import AT, LOOSE, is_view

AXES = "axes"
"""The attribute of a group with the sizes of its axes."""
ROWS = "rows"
"""The attribute of a group with the axes that its reductions go along."""


class GroupWriter:
    """Writes a graph's ops anew, those of groups into them, in an order in which each finds what it reads.

    Args:
        graph: the graph.
        groups: its groups.
        absorbed: ops of none that each reader has for itself.
    """

    def __init__(self, graph: GraphOp, groups: Sequence[Group], absorbed: Container[Operation]) -> None:
        self._graph = graph
        self._old = graph.body.block
        assert self._old.last_op is not None, "a graph ends with its return"
        self._end = self._old.last_op
        self._home = {op: group for group in groups for op in group.places}
        self._absorbed = absorbed
        self._new = Block(arg_types=self._old.arg_types)
        self._needed = set[SSAValue]()
        self._ready: dict[SSAValue, SSAValue] = dict(zip(self._old.args, self._new.args, strict=True))
        self._made: dict[Group, GroupOp] = {}

    def write(self) -> dict[Group, GroupOp]:
        """Replace the graph's ops; return what the groups have become that are needed."""
        waiting = {unit: self._reads(unit) for unit in self._units()}
        self._needed = {value for reads in (*waiting.values(), self._end.operands) for value in reads}
        while waiting:
            late = {unit: reads for unit, reads in waiting.items() if not self._written(unit, reads)}
            assert len(late) < len(waiting), "groups form no cycle"
            waiting = late
        _copy(self._end, self._ready, self._new)
        self._graph.body.detach_block(self._old)
        self._graph.body.add_block(self._new)
        for op in reversed(list(self._old.ops)):
            op.detach()
            op.erase(safe_erase=False)
        return self._made

    def _units(self) -> Iterator[Operation | Group]:
        """Yield what runs as one: groups, and the ops that are in none and that something outside reads."""
        seen = set[Group]()
        for op in self._old.ops:
            group = self._home.get(op)
            if op is self._end:
                return
            if group is None and op not in self._absorbed:
                if not (isinstance(op, LOOSE) or is_view(op)) or self._is_read(op):
                    yield op
            elif group is not None and group not in seen:
                seen.add(group)
                yield group

    def _is_read(self, op: Operation) -> bool:
        """Return whether anything but groups, which have views and constants for themselves, reads an op's result."""
        users = (use.operation for use in op.results[0].uses)
        apart = (user for user in users if user not in self._home and user not in self._absorbed)
        return any(not is_view(user) or self._is_read(user) for user in apart)

    def _reads(self, unit: Operation | Group) -> dict[SSAValue, None]:
        """Return what something reads from memory."""
        return unit.inputs(self._absorbed) if isinstance(unit, Group) else dict.fromkeys(unit.operands)

    def _written(self, unit: Operation | Group, reads: Iterable[SSAValue]) -> bool:
        """Write what runs as one; return whether all that it reads was there."""
        if not all(value in self._ready for value in reads):
            return False
        if isinstance(unit, Group):
            self._write_group(unit, list(reads))
        else:
            _copy(unit, self._ready, self._new)
        return True

    def _write_group(self, group: Group, inputs: list[SSAValue]) -> None:
        outputs = [op.results[0] for op in group.places if op.results[0] in self._needed]
        if not outputs:  # all who need it compute it again
            return
        made = GroupOp([self._ready[value] for value in inputs], [value.type for value in outputs])
        made.location = next(iter(group.places)).location
        made.attributes[AXES] = ArrayAttr([text(str(dim)) for dim in group.axes])
        made.attributes[ROWS] = words(tuple(sorted(group.reduced)))
        inside: dict[SSAValue, SSAValue] = dict(zip(inputs, made.body.block.args, strict=True))
        for op, place in group.places.items():
            _copy(op, inside, made.body.block).attributes[AT] = words(place)
        made.body.block.add_op(YieldOp([inside[value] for value in outputs]))
        self._new.add_op(made)
        self._made[group] = made
        self._ready.update(zip(outputs, made.outputs, strict=True))


def _copy(op: Operation, inside: dict[SSAValue, SSAValue], block: Block) -> Operation:
    """Copy an op to the end of a block, after what it reads that every reader has for itself."""
    for operand in op.operands:
        if operand not in inside:
            assert isinstance(operand.owner, Operation), "arguments are there"
            _copy(operand.owner, inside, block)
    clone = op.clone(inside)
    clone.location = op.location
    block.add_op(clone)
    inside.update(zip(op.results, clone.results, strict=True))
    return clone
