"""Loads what several steps of a loop need before the first of them, where the loop also stores.

A scan along columns, a recurrence or a moving average loads a small tile, combines it with what it carries, and stores
the result: each step waits for its load, which an earlier store might have changed. Where nothing that the loop stores
is what it loads, and where a load lies follows from the number of the step, several loads are in flight at once.

Before::

    %last = scf.for %i = %lo to %hi step 1 iter_args(%sum = %zero) {
      %x = load %X[%i, %j] [1, 64]; %next = add %sum, %x; store %next, %Y[%i, %j]
      scf.yield %next
    }

After::

    %most = scf.for %i = %lo to %hi - 7 step 8 iter_args(%sum = %zero) {
      %x0 = load %X[%i, %j]; ...; %x7 = load %X[%i + 7, %j]
      %s0 = add %sum, %x0; store %s0, %Y[%i, %j]; ...; %s7 = add %s6, %x7; store %s7, %Y[%i + 7, %j]
      scf.yield %s7
    }
    (and the loop as it was, for what is left)

All else stays in its order: results have the same bits. Loops that only add up are the matter of `full-boxes`; those
that carry nothing run in as many warps as there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue
from xdsl.rewriter import InsertPoint

from tessera.data import dataclass
from tessera.ir.effects import Effect, effect_of
from tessera.ir.inserter import Inserter
from tessera.ir.notes import note
from tessera.ir.tile.elementwise import constant_value
from tessera.ir.tile.memory import GatherOp, LoadOp, ScatterOp, StoreOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.structure import GridOp, KernelOp, memory_of
from tessera.ir.walking import ops_in
from tessera.lower.facts import MOST_INDEX, nonnegative
from tessera.schedule.gpu.steps import at_once, copy_ops, split_loop
from tessera.schedule.scheduled_pass import GridPass

ELEMENTS, STEPS = 4096, 16
"""Of the steps whose loads are in flight together, and how many those are at most: 32 for each of 128 threads."""
MOST_OPS = 512
"""Of all steps: there is code for each."""


@dataclass(frozen=True)
class LoadStepsPass(GridPass):
    """Loads what several steps of loops that store need at once."""

    name: ClassVar[str] = "load-steps"

    def rewrite(self, kernel: KernelOp, grid: GridOp) -> None:
        """Rewrite the innermost loops of a launch."""
        ops = ops_in(grid)
        if any(isinstance(op, MmaOp) for op in ops):
            return
        loops = [
            op for op in ops if isinstance(op, scf.ForOp) and not any(inner.regions for inner in op.body.block.ops)
        ]
        counts = [count for loop in loops if (count := _load_steps(loop)) > 1]
        if counts:
            note(grid, "load_steps", [f"loads of {max(counts)} steps of a loop are in flight together"])


def _load_steps(loop: scf.ForOp) -> int:
    """Let a loop load what several steps need first; return how many, 1 where it stays as it is."""
    *body, end = loop.body.block.ops
    step = constant_value(loop.step)
    stores = [op for op in body if isinstance(op, StoreOp)]
    if step is None or step <= 0 or not nonnegative(loop.lb) or not stores or not loop.iter_args:
        return 1
    if not all(isinstance(op, StoreOp | LoadOp | GatherOp) or effect_of(op) <= Effect.PURE for op in body):
        return 1
    early = _early(loop, body, {memory_of(op.tensor) for op in stores})
    count = at_once([op for op in body if op in early], loop, ELEMENTS, STEPS) if early else 1
    while count > 1 and count * len(body) > MOST_OPS:
        count //= 2
    length = count * int(step)
    if count == 1 or length > MOST_INDEX:
        return 1
    split_loop(loop, length, length - int(step), _several(loop, body, end, early, count, int(step)))
    return count


def _early(loop: scf.ForOp, body: Sequence[Operation], stored: set[SSAValue]) -> set[Operation]:
    """Return the loads that may happen before the steps, with what says where they lie; none if it is no load."""
    own = loop.body.block
    known = set[SSAValue]()
    movable = set[Operation]()
    for op in body:
        unchanged = not isinstance(op, GatherOp | LoadOp) or memory_of(op.tensor) not in stored
        if isinstance(op, StoreOp | ScatterOp) or not unchanged:
            continue
        if all(value is own.args[0] or value in known or _is_outside(value, own) for value in op.operands):
            movable.add(op)
            known.update(op.results)
    needed = set[Operation]()
    work: list[Operation] = [op for op in movable if isinstance(op, LoadOp | GatherOp)]
    while work:
        op = work.pop()
        if op not in needed:
            needed.add(op)
            work += [owner for value in op.operands if isinstance(owner := value.owner, Operation) and owner in movable]
    return needed


def _is_outside(value: SSAValue, block: Block) -> bool:
    """Return whether a value comes from before a loop."""
    owner = value.owner
    return owner is not block and not (isinstance(owner, Operation) and owner.parent is block)


def _several(
    loop: scf.ForOp, body: Sequence[Operation], end: Operation, early: set[Operation], count: int, step: int
) -> Block:
    """Return a loop's body that does several steps after the loads of all of them."""
    old = loop.body.block
    new = Block(arg_types=[arg.type for arg in old.args])
    insert = Inserter(InsertPoint.at_end(new), loop)
    steps = list[dict[SSAValue, SSAValue]]()
    for number in range(count):
        place = insert.binary("add", new.args[0], insert.constant(number * step)) if number else new.args[0]
        steps.append({old.args[0]: place})
        copy_ops([op for op in body if op in early], steps[-1], insert)
    carried: list[SSAValue] = list(new.args[1:])
    for known in steps:
        known.update(zip(old.args[1:], carried, strict=True))
        copy_ops([op for op in body if op not in early], known, insert)
        carried = [known.get(value, value) for value in end.operands]
    insert.add(scf.YieldOp(*carried))
    return new
