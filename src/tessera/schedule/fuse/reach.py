"""What needs what to have run, while ops join groups."""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.ir import Operation

from tessera.schedule.fuse.group import Group

Unit = Operation | Group
"""What runs as one: a group, or an op of none."""


class Reach:
    """Knows for each unit all others that it needs, as bits of a number: questions are asked often, and answers change.

    Args:
        home: the group of each op that is in one; it may change when the class is told.
    """

    def __init__(self, home: Mapping[Operation, Group]) -> None:
        self._home = home
        self._bits: dict[Unit, int] = {}
        self._needed: dict[Unit, int] = {}

    def add(self, op: Operation) -> None:
        """Know an op, after all that it reads."""
        unit = self._unit(op)
        if unit not in self._needed:
            self._bits[unit] = 1 << len(self._bits)
            self._needed[unit] = self._read(op, unit)

    def put(self, op: Operation, group: Group) -> None:
        """Know that an op has joined a group."""
        if group not in self._needed:  # nothing needs it yet
            self._bits[group] = 1 << len(self._bits)
            self._needed[group] = self._read(op, group)
            return
        own = self._bits[group]
        more = self._read(op, group) & ~(self._needed[group] | own)
        if more:
            self._spread(own, more)
            self._needed[group] |= more

    def unite(self, first: Group, second: Group) -> None:
        """Know that a group is a part of another one from now on."""
        own = self._bits[first] | self._bits.get(second, 0)
        more = (self._needed[first] | self._needed.pop(second, 0)) & ~own
        self._bits[first] = own
        self._spread(own, more | own)
        self._needed[first] = more

    def needs(self, op: Operation, group: Group) -> bool:
        """Return whether an op of another unit needs a group, itself or by what has to run with it."""
        self.add(op)
        return bool(self._needed[self._unit(op)] & self._bits.get(group, 0))

    def _unit(self, op: Operation) -> Unit:
        return self._home.get(op, op)

    def _spread(self, own: int, more: int) -> None:
        """Let all that need one unit need others, too."""
        for unit, needed in self._needed.items():
            if needed & own:
                self._needed[unit] = needed | more

    def _read(self, op: Operation, unit: Unit) -> int:
        """Return the units whose results an op of a unit reads, with all that those need."""
        found = 0
        for value in op.operands:
            owner = value.owner
            if isinstance(owner, Operation) and self._unit(owner) is not unit:
                self.add(owner)
                other = self._unit(owner)
                found |= self._bits[other] | self._needed[other]
        return found
