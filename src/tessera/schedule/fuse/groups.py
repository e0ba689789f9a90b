"""Cuts a graph into groups: each op joins the group of what it reads, as long as one kernel can compute them all.

A group goes along axes. Each of its ops is at a place: the axis of each of its dimensions. Reductions of a group go
along the same axes, the last ones, of which a program holds whole rows; on what they give the others go on. An op joins
where no other op would have to run in between. Views and constants are not placed: every reader has them for itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import prod

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue

from tessera.data import dataclass
from tessera.ir.graph.structure import GraphOp, put_updates_last
from tessera.ir.graph.sums import PartsOp, ReduceOp
from tessera.ir.graph.types import ONE, dims_of
from tessera.ir.graph.views import ConcatOp, ReshapeOp
from tessera.ir.passes import Pass
from tessera.schedule.fuse.apart import (
    BETWEEN,
    BY_PARTS,
    MOST_INPUTS,
    MOST_OPS,
    OTHER_AXES,
    OTHER_ROWS,
    TOO_MANY_INPUTS,
    TOO_MANY_OPS,
    Apart,
)
from tessera.schedule.fuse.epilogues import put_into_products
from tessera.schedule.fuse.group import Group, reads_of
from tessera.schedule.fuse.outside import (
    FEW_ELEMENTS,
    FEW_PROGRAMS,
    OUTER,
    goes_along_columns,
    goes_along_rows,
    is_static,
    prepare,
)
from tessera.schedule.fuse.places import (
    NONE,
    PLACED,
    Place,
    after,
    insert,
    is_view,
    new_axes,
    own_place,
    result_place,
    root_of,
)
from tessera.schedule.fuse.reach import Reach
from tessera.schedule.fuse.repeats import Repeats, chain_of, compared
from tessera.schedule.fuse.writing import GroupWriter
from tessera.target.dims import Dim


@dataclass(frozen=True)
class GroupPass(Pass):
    """Puts ops that one kernel can compute into groups."""

    name = "groups"

    def apply(self, module: ModuleOp) -> None:
        """Cut the graphs of a module."""
        for graph in [op for op in module.ops if isinstance(op, GraphOp)]:
            cut(graph)


def cut(graph: GraphOp) -> list[Apart]:
    """Put the ops of a graph into groups; return why groups that read one another are not one."""
    prepare(graph)
    cutter = Cutter(graph.body.block)
    for op in list(graph.body.block.ops):
        cutter.place(op)
    for op in graph.body.block.ops:
        if isinstance(op, ConcatOp):
            cutter.join(op)
    groups, absorbed = cutter.groups()
    refused = cutter.apart()
    written = GroupWriter(graph, groups, absorbed).write()
    known = [Apart(written[one], written[other], why) for one, other, why in refused if {one, other} <= written.keys()]
    apart = put_into_products(graph, known)
    put_updates_last(graph.body.block)
    return apart


class Cutter:
    """Assigns ops to groups.

    Args:
        block: the graph's ops.
    """

    def __init__(self, block: Block) -> None:
        self._home: dict[Operation, Group] = {}
        self._reach = Reach(self._home)
        self._by_parts: dict[tuple[tuple[Dim, ...], int], Group] = {}
        self._order = {op: number for number, op in enumerate(block.ops)}
        self._once = compared(block)
        self._refused: list[tuple[Operation, Operation, str]] = []
        """Ops, each with one of a group that it did not join, and why."""

    def apart(self) -> list[tuple[Group, Group, str]]:
        """Return groups that read others with which they could not be one, and why."""
        homes = self._home
        known = [(one, other, why) for one, other, why in self._refused if one in homes and other in homes]
        found = {(homes[one], homes[other], why): None for one, other, why in known if homes[one] is not homes[other]}
        return list(found)

    def _refuse(self, op: Operation, group: Group, why: str) -> None:
        self._refused.append((op, next(reversed(group.places)), why))

    def groups(self) -> tuple[list[Group], set[Operation]]:
        """Return the groups, and the ops of none that each reader has for itself."""
        repeats = Repeats(self._home, self._once)
        self._join_beside()
        repeats.repeat_maps()
        absorbed = repeats.absorb()
        self._join_numbers()
        repeats.widen_again(absorbed)
        return list(dict.fromkeys(self._home.values())), absorbed

    def _join_numbers(self) -> None:
        """Let groups of single numbers, as counters are, be one: a launch takes longer than they do."""
        into: Group | None = None
        for group in list(dict.fromkeys(self._home.values())):
            if not group.axes and not group.repeated and (into is None or self._unite(into, group, {})):
                into = group

    def _join_beside(self) -> None:
        """Let groups that do not need each other, and read one array at the same places, be one.

        So do those that read small arrays of one group: columns of which it has combined parts.
        """
        beside: dict[tuple[SSAValue | Group, Place], dict[Group, None]] = {}
        for group in list(dict.fromkeys(self._home.values())):
            full = [read for read in dict.fromkeys(reads_of(group)) if len(set(read[1]) - {NONE}) == len(group.axes)]
            keys: list[tuple[SSAValue | Group, Place]] = [*full]
            if is_static(group.axes) and prod(dim.scale for dim in group.axes) <= FEW_ELEMENTS:
                homes = ((self._home.get(value.owner), at) for value, at in full if isinstance(value.owner, Operation))
                keys += [(home, at) for home, at in homes if home is not None]
            others = dict.fromkeys(other for key in keys for other in beside.get(key, ()))
            into = next(
                (one for one in others if self._is_alike(one, group) and not self._unite(one, group, {})), group
            )
            for key in keys:
                beside.setdefault(key, {})[into] = None

    @staticmethod
    def _is_alike(first: Group, second: Group) -> bool:
        """Return whether two groups go along the same axes in the same way, and neither reads what the other gives."""
        if (first.axes, first.reduced, first.parts) != (second.axes, second.reduced, second.parts):
            return False
        if first.repeated or second.repeated:
            return False
        pairs = (first, second), (second, first)
        read = ((one, value) for one, other in pairs for op in other.places for value in op.operands)
        return not any(root_of(value).owner in one.places for one, value in read)

    def place(self, op: Operation) -> None:
        """Put an op into a group, if ops like it are in groups."""
        if isinstance(op, PartsOp):
            self._place_parts(op)
        elif isinstance(op, ReduceOp):
            self._place_reduction(op)
        elif isinstance(op, PLACED):
            self._place_point(op)
        else:
            self._reach.add(op)

    def _found(self, value: SSAValue) -> tuple[Group, Place] | None:
        """Return the group that computes a value, or what it is a view of, and the value's place there."""
        owner = value.owner
        if not isinstance(owner, Operation) or isinstance(owner, PartsOp):
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
        known.sort(key=lambda found: self._rank(found[0]))
        chosen: tuple[Group, Place] | None = None
        for group, place in known:
            if chosen is None:
                why = self._why_not(op, group)
                chosen = None if why else (group, place)
            else:
                why = "" if group is chosen[0] else self._merge(op, chosen, (group, place))
            if why:
                self._refuse(op, group, why)
        if chosen is not None and chosen[1] != self._agreed(op, *chosen):
            self._refuse(op, chosen[0], OTHER_AXES)
            chosen = None
        if chosen is None:
            chosen = _alone(op.results[0])
        self._put(op, *chosen)

    def _rank(self, group: Group) -> tuple[bool, bool, int]:
        """Return what groups are tried by: first those of rows and of parts, which join no other, then late ones."""
        return not group.reduced, group.parts is None, -self._last(group)

    def _agreed(self, op: Operation, group: Group, place: Place) -> Place | None:
        """Return the place at which all of an op's operands in a group lie, None where they differ."""
        places = {found[1] for found in map(self._found, op.operands) if found is not None and found[0] is group}
        return place if places == {place} else None

    def _place_reduction(self, op: ReduceOp) -> None:
        source = op.source
        if not goes_along_rows(op) and not goes_along_columns(op):
            return
        found = self._found(source) or self._reading(source)
        why = "" if found is None else self._why_not_reduced(op, *found)
        if found is not None and why:
            self._refuse(op, found[0], why)
        if found is None or why:
            found = _alone(source)
        group, place = found
        group.reduced = _reduced(op, place)
        self._put(op, group, place)

    def _place_parts(self, op: PartsOp) -> None:
        """Put a reduction by parts into the group of its operand, or into one that computes its operand again."""
        found = self._found(op.source) or self._beside(op.source)
        if found is not None:
            group, place = found
            along = place[op.axis.data]
            if along in group.reduced and self._place_rows(op, group, place):
                return
            count = _beside_rows(op, group, along) if group.reduced else op.count.data
            if count and group.parts in (None, (along, count)) and not self._why_not(op, group):
                group.parts = along, count
                self._put(self._by(op, count), group, place)
                return
            self._refuse(op, found[0], self._why_not(op, found[0]) or BY_PARTS)
        group, place = self._for_parts(op)
        chain = chain_of(op.source, self._home)
        group.repeated |= set[Operation]() if chain & self._once else chain
        self._put(op, group, place)

    def _place_rows(self, op: PartsOp, group: Group, place: Place) -> bool:
        """Let a group of rows reduce whole rows in place of parts of them, if all parts become one; return if so."""
        axes = [axis for axis, at in enumerate(place) if at in group.reduced]
        readers = [use.operation for use in op.result.uses]
        if not all(isinstance(one, ReduceOp) and {*axes} <= {*one.reduced} for one in readers):
            return False
        rows = ReduceOp(op.source, op.fn.data, axes)
        if self._why_not_reduced(rows, group, place):
            rows.erase()
            return False
        dims = [ONE if axis in axes else dim for axis, dim in enumerate(dims_of(op.source))]
        shaped = ReshapeOp(rows.result, dims)
        insert([rows, shaped], op)
        self._order[rows] = self._order[shaped] = self._order[op]
        for use in list(op.result.uses):
            use.operation.operands[use.index] = shaped.result
        op.detach()
        op.erase()
        self._put(rows, group, place)
        return True

    def _beside(self, value: SSAValue) -> tuple[Group, Place] | None:
        """Return a group of rows that reads a value from memory as it lies, with the value's place there."""
        alone, place = _alone(value)
        for group in dict.fromkeys(self._home.values()):
            if group.reduced and group.axes == alone.axes and (value, place) in reads_of(group):
                return group, place
        return None

    def _reading(self, value: SSAValue) -> tuple[Group, Place] | None:
        """Return the last group of rows that reads a value from memory as it lies, likewise."""
        alone, place = _alone(value)
        homes = [self._home[use.operation] for use in value.uses if use.operation in self._home]
        alike = [group for group in homes if group.reduced and group.axes == alone.axes]
        reading = [group for group in alike if (value, place) in reads_of(group)]
        return (max(reading, key=self._last), place) if reading else None

    def _last(self, group: Group) -> int:
        return max(map(self._order.__getitem__, group.places))

    def _by(self, op: PartsOp, count: int) -> PartsOp:
        """Return a reduction by parts of another number of neighbours, which takes the place of one."""
        if count == op.count.data:
            return op
        other = PartsOp(op.source, op.fn.data, op.axis.data, count)
        insert([other], op)
        self._order[other] = self._order[op]
        op.result.replace_all_uses_with(other.result)
        op.detach()
        op.erase()
        return other

    def _for_parts(self, op: PartsOp) -> tuple[Group, Place]:
        """Return a group of reductions by parts along the same axis, with the place of the operand in it."""
        fresh, place = _alone(op.source)
        along = place[op.axis.data]
        key = tuple(fresh.axes), along
        group = self._by_parts.get(key)
        if group is None or self._why_not(op, group):
            fresh.parts = along, op.count.data
            group = self._by_parts[key] = fresh
        return group, place

    def _why_not_reduced(self, op: ReduceOp, group: Group, place: Place) -> str:
        """Return why a reduction of a value at a place cannot join its group, nothing where it can."""
        along = _reduced(op, place)
        alike = group.reduced in (frozenset(), along) and group.parts is None
        # A row is all of the last axes, in every value of the group; columns are as long as they are in the first.
        last = along == frozenset(range(len(group.axes) - len(along), len(group.axes)))
        whole = sum(dim != ONE for dim in dims_of(op.source)) == len(group.axes)
        return self._why_not(op, group) if alike and (last or whole) else OTHER_ROWS

    def _put(self, op: Operation, group: Group, place: Place) -> None:
        group.add(op, place)
        self._home[op] = group
        self._reach.put(op, group)

    def _why_not(self, op: Operation, group: Group) -> str:
        """Return why an op cannot join a group, nothing where it can."""
        reads = {root for root in map(root_of, op.operands) if root.owner not in group.places}
        if len(group.places) >= MOST_OPS:
            return TOO_MANY_OPS
        if len(group.reads() | reads) > MOST_INPUTS:
            return TOO_MANY_INPUTS
        return BETWEEN if self._between([op], group) else ""

    def _merge(self, op: Operation, into: tuple[Group, Place], other: tuple[Group, Place]) -> str:
        """Make one group of two of which an op reads values; return why that cannot be, nothing where it can."""
        (first, place), (second, there) = into, other
        renamed = dict(zip(there, place, strict=True))
        if not there and _is_one_program(first) and _is_one_program(second) and first.axes == second.axes:
            renamed = {axis: axis for axis in range(len(second.axes))}
        whole = set(range(len(second.axes))) <= renamed.keys() and second.parts is None
        alike = not second.reduced or frozenset(renamed.get(axis, NONE) for axis in second.reduced) == first.reduced
        if not whole:
            return OTHER_AXES
        if not alike:
            return OTHER_ROWS
        return BETWEEN if self._between([op], second) else self._unite(first, second, renamed)

    def join(self, op: ConcatOp) -> None:
        """Make one group of those that compute parts of a concatenation along the same axes."""
        owners = [source.owner for source in _all_parts(op)]
        found = [self._home[owner] for owner in owners if isinstance(owner, Operation) and owner in self._home]
        groups = list(dict.fromkeys(found))
        for other in groups[1:]:
            first = groups[0]
            if first.axes == other.axes and not first.reduced | other.reduced and first.parts is other.parts is None:
                self._unite(first, other, {axis: axis for axis in range(len(first.axes))})

    def _unite(self, first: Group, second: Group, renamed: Mapping[int, int]) -> str:
        """Make one group of two, whose axes have the same numbers but for some; return why that cannot be."""
        if len(first.places) + len(second.places) > MOST_OPS:
            return TOO_MANY_OPS
        if len(first.reads() | second.reads()) > MOST_INPUTS:
            return TOO_MANY_INPUTS
        if self._between(first.places, second) or self._between(second.places, first):
            return BETWEEN
        both = sorted((*first.places, *second.places), key=self._order.__getitem__)
        moved = {op: tuple(renamed.get(at, at) for at in at_) for op, at_ in second.places.items()}
        first.places = {one: first.places.get(one) or moved.get(one, ()) for one in both}
        self._home.update(dict.fromkeys(moved, first))
        self._reach.unite(first, second)
        return ""

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
            elif self._reach.needs(owner, group):
                return True
        return False


def _is_one_program(group: Group) -> bool:
    """Return whether a group reduces all that it reads."""
    return bool(group.reduced) and len(group.reduced) == len(group.axes)


def _all_parts(op: ConcatOp) -> Iterator[SSAValue]:
    """Yield the parts of a concatenation, and those of parts that are concatenations."""
    for source in op.sources:
        if isinstance(source.owner, ConcatOp):
            yield from _all_parts(source.owner)
        else:
            yield source


def _alone(value: SSAValue) -> tuple[Group, Place]:
    """Return a new group whose axes are a value's dimensions, with its place there."""
    dims = dims_of(value)
    return Group([dim for dim in dims if dim != ONE]), own_place(dims)


def _axes_for(view: Operation, group: Group, place: Place) -> tuple[int, ...] | None:
    """Return the axes of a group along which a view repeats a value of it, None where there are none."""
    dims = dims_of(view.results[0])
    new = [dims[axis] for axis in new_axes(view)]
    free = [axis for axis in sorted(group.reduced) if axis not in place]
    if not new:
        return ()
    return tuple(free) if [group.axes[axis] for axis in free] == new else None


def _beside_rows(op: PartsOp, group: Group, along: int) -> int:
    """Return how many rows a program holds that combines columns of them, too; 0 where that is not worth it."""
    if not is_static(group.axes) or along in group.reduced or along != min(group.reduced) - 1:
        return 0
    rows = group.axes[along].scale
    if prod(group.axes[axis].scale for axis in group.reduced) > HELD or rows < LEAST_ROWS * FEW_PROGRAMS:
        return 0
    return min(max(1 << max(rows // PROGRAMS, 1).bit_length() - 1, LEAST_ROWS), OUTER)


HELD = 2048
"""Elements of a row of a program that combines rows and, of several of them, columns."""
LEAST_ROWS = 8
"""Rows of a program from which on what it writes is little beside what it need not read again."""
PROGRAMS = 1024
"""That keep a GPU busy."""


def _reduced(op: ReduceOp, place: Place) -> frozenset[int]:
    return frozenset(place[axis] for axis in op.reduced if place[axis] != NONE)
