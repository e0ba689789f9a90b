"""Calls that overwrite arrays: which of them do so where these lie, and which in copies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from tessera.ir.graph.structure import CallOp, UpdateOp, put_updates_last
from tessera.ir.graph.takes import StoredOp
from tessera.ir.graph.views import BroadcastOp, ReshapeOp, SliceOp, TransposeOp
from tessera.ops import arrays

_VIEWS = (BroadcastOp, ReshapeOp, SliceOp, StoredOp, TransposeOp)


def overwritten(block: Block, changing: Mapping[str, int]) -> dict[Operation, tuple[bool, ...]]:
    """Move calls that overwrite arrays to the end of a graph, and say which of their arrays they may overwrite.

    Args:
        block: the graph, cut into groups.
        changing: how many arrays calls overwrite, the first ones, by name.

    Returns:
        For each such call, and each array that it overwrites, whether nothing needs what was there: where something
        does, or where the array is an argument that is not to be changed, a copy of it is overwritten.
    """
    calls = [op for op in block.ops if isinstance(op, CallOp) and op.callee.data in changing]
    _move_last(block, calls)
    lives = _Lives(block, changing)
    return {op: lives.flags(op) for op in calls}


def _move_last(block: Block, calls: Sequence[CallOp]) -> None:
    """Let all that does not depend on calls run before them, and arguments be written when nothing is left to read."""
    late = set[Operation](calls)
    for op in list(block.ops):
        if op is not block.last_op and (op in late or any(value.owner in late for value in op.operands)):
            late.add(op)
            op.detach()
            assert block.last_op is not None, "a graph ends with its return"
            block.insert_op_before(op, block.last_op)
    put_updates_last(block)


class _Lives:
    """Follows in which memory values lie, in the order of a graph's ops.

    Args:
        block: the ops.
        changing: as in `overwritten`.
    """

    def __init__(self, block: Block, changing: Mapping[str, int]) -> None:
        self._changing = changing
        self._place = {op: place for place, op in enumerate(block.ops)}
        self._updates = {op.target: op.value for op in block.ops if isinstance(op, UpdateOp)}
        self._memory: dict[SSAValue, frozenset[SSAValue]] = {arg: frozenset([arg]) for arg in block.args}
        self._versions: dict[SSAValue, SSAValue] = {}
        """What a value overwrites, where it does."""
        for op in block.ops:
            for at, result in enumerate(op.results):
                self._memory[result] = self._lies_in(op, at, result)
        self._readers: dict[SSAValue, list[Operation]] = {}
        for op in block.ops:
            for value in op.operands[1:] if isinstance(op, UpdateOp) else op.operands:
                for root in self._memory[value]:
                    self._readers.setdefault(root, []).append(op)

    def _lies_in(self, op: Operation, at: int, result: SSAValue) -> frozenset[SSAValue]:
        """Return values of which one may lie where a result does."""
        if isinstance(op, _VIEWS):
            return self._memory[op.operands[0]]
        if isinstance(op, CallOp) and at >= self._changing.get(op.callee.data, 0):
            alike = (self._memory[value] for value in op.inputs if value.type == result.type)
            return frozenset([result]).union(*alike)
        return frozenset([result])

    def flags(self, op: CallOp) -> tuple[bool, ...]:
        """Return which of its arrays a call may overwrite."""
        return tuple(map(self._may, [op] * self._changing[op.callee.data], range(len(op.inputs))))

    def _may(self, op: CallOp, at: int) -> bool:
        value, made = op.inputs[at], op.outputs[at]
        while isinstance(value.owner, ReshapeOp):
            value = value.owner.source
        roots = self._memory[value]
        if value not in roots or len(roots) > 1 or sum(bool(self._memory[one] & roots) for one in op.inputs) > 1:
            return False
        first = self._first(value)
        is_mine = not isinstance(first, BlockArgument) or (value is op.inputs[at] and self._leads(made, first))
        place = self._place[op]
        if not is_mine or any(self._place[reader] > place for reader in self._readers[value]):
            return False
        self._versions[made] = value
        return True

    def _first(self, value: SSAValue) -> SSAValue:
        """Return the value that lies in an array before anything overwrites it."""
        while value in self._versions:
            value = self._versions[value]
        return value

    def _leads(self, value: SSAValue, target: SSAValue) -> bool:
        """Return whether a value is the one that is written to an argument, or is overwritten on the way to it."""
        last = self._updates.get(target)
        while last is not None and last is not value:
            owner = last.owner
            at = owner.results.index(last) if isinstance(owner, CallOp) else -1
            last = owner.operands[at] if isinstance(owner, CallOp) and at < self._changes(owner) else None
        return last is value

    def _changes(self, op: CallOp) -> int:
        return self._changing.get(op.callee.data, 0)


def changed(run: Callable[..., Sequence[Any]], in_place: Sequence[bool], *given: Any) -> list[Any]:
    """Call what overwrites its first arrays, copies of those that are needed; return these, and its results."""
    arguments = list(given)
    for at, may in enumerate(in_place):
        if not may:
            arguments[at] = arrays.copied(arguments[at])
    return [*arguments[: len(in_place)], *run(*arguments)]


def write(goal: Any, source: Any) -> tuple[()]:
    """Write an array to an argument, unless it lies there."""
    if goal is source:
        return ()
    if arrays.is_torch(goal):
        goal.copy_(source)
    elif isinstance(goal, np.ndarray):
        goal[...] = source
    else:
        goal.copy_from(source.numpy())
    return ()
