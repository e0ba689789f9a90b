"""Cuts a graph into groups: each op joins the group of what it reads, as long as one kernel can compute them all.

A group goes along axes. Each of its ops is at a place: the axis of each of its dimensions. Reductions of a group go
along the same axes, the last ones, of which a program holds whole rows; on what they give the others go on. An op joins
where no other op would have to run in between. Views and constants are not placed: every reader has them for itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field

from xdsl.dialects.builtin import ArrayAttr, DenseArrayBase, ModuleOp, i64
from xdsl.ir import Block, Operation, SSAValue

from tessera.data import dataclass
from tessera.ir.attributes import text
from tessera.ir.graph.structure import GraphOp, GroupOp, YieldOp
from tessera.ir.graph.sums import ReduceOp
from tessera.ir.graph.types import ONE, dims_of
from tessera.ir.passes import Pass
from tessera.schedule.fuse.outside import library_reduces, prepare
from tessera.schedule.fuse.places import (
    AT,
    LOOSE,
    NONE,
    PLACED,
    Place,
    after,
    is_view,
    new_axes,
    result_place,
    root_of,
)
from tessera.target.dims import Dim

MOST_OPS = 160
MOST_INPUTS = 28
AXES = "axes"
"""The attribute of a group with the sizes of its axes."""
ROWS = "rows"
"""The attribute of a group with the axes that its reductions go along."""


@dataclass(slots=True, eq=False)
class Group:
    """Ops that are to be one kernel.

    Args:
        axes: the size of each axis.
        places: where its ops work, in order.
        reduced: the axes that reductions go along.
    """

    axes: list[Dim]
    places: dict[Operation, Place] = field(default_factory=dict[Operation, Place])
    reduced: frozenset[int] = frozenset()

    def inputs(self) -> dict[SSAValue, None]:
        """Return what it reads from memory."""
        found: dict[SSAValue, None] = {}
        for op in self.places:
            for operand in op.operands:
                root = root_of(operand)
                if root.owner not in self.places and not isinstance(root.owner, LOOSE):
                    found[root] = None
        return found


@dataclass(frozen=True)
class GroupPass(Pass):
    """Puts ops that one kernel can compute into groups."""

    name = "groups"

    def apply(self, module: ModuleOp) -> None:
        """Cut the graphs of a module."""
        for graph in [op for op in module.ops if isinstance(op, GraphOp)]:
            cut(graph)


def cut(graph: GraphOp) -> None:
    """Put the ops of a graph into groups."""
    prepare(graph)
    cutter = Cutter(graph.body.block)
    for op in graph.body.block.ops:
        if isinstance(op, PLACED):
            cutter.place(op)
    write_groups(graph, cutter.groups())


class Cutter:
    """Assigns ops to groups.

    Args:
        block: the graph's ops.
    """

    def __init__(self, block: Block) -> None:
        self._home: dict[Operation, Group] = {}
        self._order = {op: number for number, op in enumerate(block.ops)}

    def groups(self) -> list[Group]:
        """Return the groups."""
        return list(dict.fromkeys(self._home.values()))

    def place(self, op: Operation) -> None:
        """Put an op into a group."""
        if isinstance(op, ReduceOp):
            self._place_reduction(op)
        else:
            self._place_point(op)

    def _found(self, value: SSAValue) -> tuple[Group, Place] | None:
        """Return the group that computes a value, or what it is a view of, and the value's place there."""
        owner = value.owner
        if not isinstance(owner, Operation):
            return None
        if owner in self._home:
            return self._home[owner], after(owner, self._home[owner].places[owner])
        if not is_view(owner):
            return None
        below = self._found(owner.operands[0])
        if below is None:
            return None
        group, place = below
        axes = _axes_for(owner, group, place)
        return None if axes is None else (group, result_place(owner, place, axes))

    def _place_point(self, op: Operation) -> None:
        known = [found for found in map(self._found, op.operands) if found is not None]
        known.sort(key=lambda found: (not found[0].reduced, -max(map(self._order.__getitem__, found[0].places))))
        chosen: tuple[Group, Place] | None = None
        for group, place in known:
            if chosen is None:
                chosen = (group, place) if self._may_join(op, group) else None
            elif group is not chosen[0]:
                self._merge(op, chosen, (group, place))
        if chosen is None or (chosen[1] != self._agreed(op, *chosen)):
            dims = dims_of(op.results[0])
            axes = [dim for dim in dims if dim != ONE]
            numbers = iter(range(len(axes)))
            chosen = Group(axes), tuple(NONE if dim == ONE else next(numbers) for dim in dims)
        self._put(op, *chosen)

    def _agreed(self, op: Operation, group: Group, place: Place) -> Place | None:
        """Return the place at which all of an op's operands in a group lie, None where they differ."""
        places = {found[1] for found in map(self._found, op.operands) if found is not None and found[0] is group}
        return place if places == {place} else None

    def _place_reduction(self, op: ReduceOp) -> None:
        source = op.source
        if not _goes_along_rows(op):
            return
        found = self._found(source)
        if found is None or not self._reduces(op, *found):
            dims = dims_of(source)
            axes = [dim for dim in dims if dim != ONE]
            numbers = iter(range(len(axes)))
            found = Group(axes), tuple(NONE if dim == ONE else next(numbers) for dim in dims)
        group, place = found
        group.reduced = _reduced(op, place)
        self._put(op, group, place)

    def _reduces(self, op: ReduceOp, group: Group, place: Place) -> bool:
        """Return whether a reduction of a value at a place can join its group."""
        along = _reduced(op, place)
        alike = group.reduced in (frozenset(), along)
        # A row is all of the last axes, in every value of the group.
        last = along == frozenset(range(len(group.axes) - len(along), len(group.axes)))
        return alike and last and self._may_join(op, group)

    def _put(self, op: Operation, group: Group, place: Place) -> None:
        group.places[op] = place
        self._home[op] = group

    def _may_join(self, op: Operation, group: Group) -> bool:
        if len(group.places) >= MOST_OPS or len({*group.inputs(), *map(root_of, op.operands)}) > MOST_INPUTS:
            return False
        return not self._between([op], group)

    def _merge(self, op: Operation, into: tuple[Group, Place], other: tuple[Group, Place]) -> None:
        """Make one group of two of which an op reads values, where their axes are the same."""
        (first, place), (second, there) = into, other
        renamed = dict(zip(there, place, strict=True))
        whole = set(range(len(second.axes))) <= renamed.keys() and not second.reduced
        if not whole or len(first.places) + len(second.places) > MOST_OPS or self._between([op], second):
            return
        if len({*first.inputs(), *second.inputs()}) > MOST_INPUTS:
            return
        if self._between(first.places, second) or self._between(second.places, first):
            return
        both = sorted((*first.places, *second.places), key=self._order.__getitem__)
        moved = {op: tuple(renamed.get(at, NONE) for at in at_) for op, at_ in second.places.items()}
        first.places = {one: first.places.get(one) or moved.get(one, ()) for one in both}
        self._home.update(dict.fromkeys(moved, first))

    def _between(self, ops: Iterable[Operation], group: Group) -> bool:
        """Return whether what some ops read, other than from a group, needs the group to have run."""
        own, seen = {*ops}, set[Operation]()
        work = [value.owner for op in own for value in op.operands]
        while work:
            owner = work.pop()
            if not isinstance(owner, Operation) or owner in seen or owner in own:
                continue
            seen.add(owner)
            if owner in group.places:
                continue
            if is_view(owner):
                work += [value.owner for value in owner.operands]
            elif self._reaches(owner, group):
                return True
        return False

    def _reaches(self, start: Operation, group: Group) -> bool:
        """Return whether an op depends on a group, itself or by what has to run with it."""
        work: list[object] = [start]
        seen = set[Operation]()
        while work:
            owner = work.pop()
            if not isinstance(owner, Operation) or owner in seen:
                continue
            if owner in group.places:
                return True
            seen.add(owner)
            home = self._home.get(owner)
            for op in (owner,) if home is None else home.places:
                work += [value.owner for value in op.operands]
        return False


def _axes_for(view: Operation, group: Group, place: Place) -> tuple[int, ...] | None:
    """Return the axes of a group along which a view repeats a value of it, None where there are none."""
    dims = dims_of(view.results[0])
    new = [dims[axis] for axis in new_axes(view)]
    free = [axis for axis in sorted(group.reduced) if axis not in place]
    if not new:
        return ()
    return tuple(free) if [group.axes[axis] for axis in free] == new else None


def _reduced(op: ReduceOp, place: Place) -> frozenset[int]:
    return frozenset(place[axis] for axis in op.reduced if place[axis] != NONE)


def _goes_along_rows(op: ReduceOp) -> bool:
    """Return whether each row of a reduction is a program's; the library has code for wide ones and for columns."""
    dims = dims_of(op.source)
    left = [axis for axis, dim in enumerate(dims) if axis not in op.reduced and dim != ONE]
    along = [axis for axis in op.reduced if dims[axis] != ONE]
    last = not left or not along or left[-1] < along[0]
    return last and (bool(left) or not along or not library_reduces(op))


def write_groups(graph: GraphOp, groups: list[Group]) -> None:
    """Write a graph's ops anew, those of groups into them, in an order in which each finds what it reads."""
    old = graph.body.block
    home = {op: group for group in groups for op in group.places}
    new = Block(arg_types=old.arg_types)
    ready: dict[SSAValue, SSAValue] = dict(zip(old.args, new.args, strict=True))
    waiting = list(_units(old, home))
    while waiting:
        late: list[Operation | Group] = []
        for unit in waiting:
            reads = unit.inputs() if isinstance(unit, Group) else dict.fromkeys(unit.operands)
            if not all(value in ready for value in reads):
                late.append(unit)
            elif isinstance(unit, Group):
                _write(new, unit, home, ready)
            else:
                _copy(unit, ready, new)
        assert len(late) < len(waiting), "groups form no cycle"
        waiting = late
    graph.body.detach_block(old)
    graph.body.add_block(new)
    for op in reversed(list(old.ops)):
        op.detach()
        op.erase(safe_erase=False)


def _units(block: Block, home: Mapping[Operation, Group]) -> Iterator[Operation | Group]:
    """Yield what runs as one: groups, and the ops that are in none and that something outside reads."""
    seen = set[Group]()
    for op in block.ops:
        group = home.get(op)
        if group is None and ((not isinstance(op, LOOSE) and not is_view(op)) or _is_read(op, home)):
            yield op
        elif group is not None and group not in seen:
            seen.add(group)
            yield group


def _is_read(op: Operation, home: Mapping[Operation, Group]) -> bool:
    """Return whether anything but groups, which have views and constants for themselves, reads an op's result."""
    users = (use.operation for use in op.results[0].uses)
    return any(user not in home and (not is_view(user) or _is_read(user, home)) for user in users)


def _write(block: Block, group: Group, home: Mapping[Operation, Group], ready: dict[SSAValue, SSAValue]) -> None:
    """Write a group at the end of a block."""
    inputs = list(group.inputs())
    outputs = [op.results[0] for op in group.places if _leaves(op, group, home)]
    made = GroupOp([ready[value] for value in inputs], [value.type for value in outputs])
    made.location = next(iter(group.places)).location
    made.attributes[AXES] = ArrayAttr([text(str(dim)) for dim in group.axes])
    made.attributes[ROWS] = DenseArrayBase.from_list(i64, sorted(group.reduced))
    inside: dict[SSAValue, SSAValue] = dict(zip(inputs, made.body.block.args, strict=True))
    for op, place in group.places.items():
        _copy(op, inside, made.body.block).attributes[AT] = DenseArrayBase.from_list(i64, place)
    made.body.block.add_op(YieldOp([inside[value] for value in outputs]))
    block.add_op(made)
    ready.update(zip(outputs, made.outputs, strict=True))


def _leaves(op: Operation, group: Group, home: Mapping[Operation, Group]) -> bool:
    """Return whether anything outside its group reads an op's result, or a view of it."""
    users = [use.operation for use in op.results[0].uses]
    apart = (user for user in users if home.get(user) is not group)
    return any(_leaves(user, group, home) if is_view(user) else True for user in apart)


def _copy(op: Operation, inside: dict[SSAValue, SSAValue], block: Block) -> Operation:
    """Copy an op to the end of a block, after the views and constants that it reads and that are not there yet."""
    for operand in op.operands:
        if operand not in inside:
            assert isinstance(operand.owner, Operation), "arguments are there"
            _copy(operand.owner, inside, block)
    clone = op.clone(inside)
    clone.location = op.location
    block.add_op(clone)
    inside.update(zip(op.results, clone.results, strict=True))
    return clone
