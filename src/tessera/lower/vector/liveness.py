"""When TIR-H values are last used, and how often they would be computed if nothing were stored."""

from __future__ import annotations

from collections.abc import Iterable

from xdsl.dialects import scf
from xdsl.ir import Attribute, Block, Operation, SSAValue

from tessera.ir.tile.elementwise import BitcastOp, CastOp, ElementwiseOp
from tessera.ir.tile.memory import GatherOp, LoadOp
from tessera.ir.tile.random import PhiloxOp
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp, TransposeOp
from tessera.ir.walking import ops_in
from tessera.lower.launch import LaunchPlan

TRANSPARENT = (ElementwiseOp, CastOp, BitcastOp, BroadcastOp, ReshapeOp, TransposeOp, GatherOp, LoadOp, PhiloxOp)
"""Ops whose results are computed where they are used."""

Sink = tuple[Operation, Attribute]
"""An op that runs a loop over a tile, and the tile's type."""

MANY_SINKS = 16
"""Loops that compute a tile are told apart up to so many."""

LOOP_REPEATS = 8
"""How often a loop body is taken to run."""


class Liveness:
    """Numbers the ops of a launch in textual order.

    Args:
        plan: the launch.
    """

    def __init__(self, plan: LaunchPlan):
        self.order: dict[Operation, int] = {}
        self.end: dict[Operation, int] = {}
        self._last: dict[SSAValue, int] = {}
        self._sinks: dict[SSAValue, dict[Sink, int]] = {}
        self._count = 0
        self._number(plan.prologue)
        if plan.grid is not None:
            self._count += 1
            self.order[plan.grid] = self._count
        self._number(plan.body)
        if plan.grid is not None:
            self._count += 1
            self.end[plan.grid] = self._count

    def _number(self, ops: Iterable[Operation]) -> None:
        for op in ops:
            self._count += 1
            self.order[op] = self._count
            for region in op.regions:
                for block in region.blocks:
                    self._number(block.ops)
            self._count += 1
            self.end[op] = self._count

    def last_use(self, value: SSAValue) -> int:
        """Return the position of a value's last use; the end of a loop when it is used inside one."""
        if value not in self._last:
            owner = value.owner
            home = owner if isinstance(owner, Block) else owner.parent_block()
            self._last[value] = max((self._position(use.operation, home) for use in value.uses), default=-1)
        return self._last[value]

    def _position(self, op: Operation, home: Block | None) -> int:
        ancestor: Operation | None = op
        while ancestor is not None and ancestor.parent_block() is not home:
            ancestor = ancestor.parent_op()
        if ancestor is None or (ancestor not in self.order and ancestor not in self.end):
            return -1  # used by another launch of the kernel
        return self.order[ancestor] if ancestor is op else self.end[ancestor]

    def live_after(self, value: SSAValue, position: int) -> bool:
        """Return whether a value is used after the op at `position`."""
        return self.last_use(value) > position

    def used_at(self, value: SSAValue, position: int) -> bool:
        """Return whether the op at `position` is the value's last user, or a later one is."""
        return self.last_use(value) >= position

    def used_inside(self, op: Operation) -> list[SSAValue]:
        """Return the values from outside that the regions of `op` use."""
        found: dict[SSAValue, None] = {}
        for inner in ops_in(op):
            if inner is not op:
                found.update(dict.fromkeys(v for v in inner.operands if not self._defined_inside(v, op)))
        return list(found)

    def _defined_inside(self, value: SSAValue, op: Operation) -> bool:
        owner = value.owner
        parent = owner.parent_op() if isinstance(owner, Block) else owner
        while parent is not None:
            if parent is op:
                return owner is not op
            parent = parent.parent_op()
        return False

    def demand(self, value: SSAValue) -> int:
        """Return in how many loops a tile would be computed, a use inside a loop counting several times."""
        return sum(self._sinks_of(value).values())

    def loops(self, values: Iterable[SSAValue]) -> int:
        """Return how many different loops compute any of these tiles."""
        return len({sink for value in values for sink in self._sinks_of(value)})

    def sinks(self, value: SSAValue) -> set[Operation]:
        """Return the ops that a tile reaches by way of those that are computed where they are used."""
        return {op for op, _ in self._sinks_of(value)}

    def _sinks_of(self, value: SSAValue) -> dict[Sink, int]:
        """Return the loops that compute a tile, and how often each runs; in one loop it is computed once.

        Of many loops, some: more than ask for storing a tile.
        """
        work = [value]
        while work:
            part = work[-1]
            reached = [r for use in part.uses if isinstance(use.operation, TRANSPARENT) for r in use.operation.results]
            missing = [] if part in self._sinks else [r for r in reached if r not in self._sinks]
            if missing:
                work += missing
                continue
            work.pop()
            if part not in self._sinks:
                self._sinks[part] = self._found_sinks(part)
        return self._sinks[value]

    def _found_sinks(self, value: SSAValue) -> dict[Sink, int]:
        found: dict[Sink, int] = {}
        for use in value.uses:
            factor = self._repeats(value, use.operation)
            for sink, times in self._sinks_of_use(value, use.operation).items():
                found[sink] = max(found.get(sink, 0), factor * times)
            if len(found) >= MANY_SINKS:
                break
        return found

    def _sinks_of_use(self, value: SSAValue, user: Operation) -> dict[Sink, int]:
        if not isinstance(user, TRANSPARENT):
            return {(user, value.type): 1}  # a region's end hands on tiles of each shape in a loop of its own
        found: dict[Sink, int] = {}
        for result in user.results:
            for sink, times in self._sinks[result].items():
                found[sink] = max(found.get(sink, 0), times)
        return found

    def _repeats(self, value: SSAValue, user: Operation) -> int:
        """Return how often a use runs for each time that the value is made."""
        owner = value.owner
        home = owner if isinstance(owner, Block) else owner.parent_block()
        parent = user.parent_op()
        while parent is not None and user.parent_block() is not home:
            if isinstance(parent, scf.ForOp | scf.WhileOp):
                return LOOP_REPEATS
            if parent.parent_block() is home:
                break
            parent = parent.parent_op()
        return 1
