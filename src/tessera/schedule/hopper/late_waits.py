"""Keeps one step's products in flight while the next step's start, for consumers that work alone (Hopper).

Before, in a group of consumers that has the matrix units to itself::

    scf.for ... iter_args(%acc, %slot, ...) {
      barrier_wait %full[%slot]; %next = mma %a[%slot], %b[%slot], %acc; barrier_arrive %empty[%slot]
    }

After::

    %0 = mma_begin %acc                    (before the group's turn)
    scf.for ... iter_args(%sum = %0, %slot, ..., %last) {
      barrier_wait %full[%slot]; %next = mma_start %a[%slot], %b[%slot], %sum
      mma_retire pending 1; barrier_arrive %empty[%last] when this is not the first step
      yield %next, ..., %slot
    }
    %acc = mma_wait; barrier_arrive %empty[%last] when there was a step

Waiting for each step's products before the next ones start would leave the matrix units idle in between. Two warpgroups
that work on one tile fill these gaps for each other, so that their loops stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Attribute, Block, BlockArgument, Operation
from xdsl.rewriter import InsertPoint, Rewriter

from tessera.data import dataclass
from tessera.ir import decisions
from tessera.ir.inserter import Inserter
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.roles import BarrierArriveOp, BarrierWaitOp, RolesOp
from tessera.ir.tile.types import SharedType
from tessera.ir.tile.warpgroup import MmaBeginOp, MmaRetireOp, MmaStartOp, MmaWaitOp
from tessera.schedule.dependences import is_asynchronous, is_remade
from tessera.schedule.scheduled_pass import ScheduledPass


@dataclass(frozen=True)
class LateWaitsPass(ScheduledPass):
    """Rewrites the loops of consumer groups that do nothing but products that add to carried sums."""

    name: ClassVar[str] = "late-waits"

    def apply(self, module: ModuleOp) -> None:
        """Rewrite every loop of the module in place."""
        for roles in [op for op in module.walk() if isinstance(op, RolesOp) and op.groups.data > 1]:
            for loop in [op for op in roles.consumer.block.ops if isinstance(op, scf.ForOp)]:
                products = [op for op in loop.body.block.ops if isinstance(op, MmaOp)]
                if products and _qualifies(loop.body.block):
                    _rewrite(roles, loop, products)


def _qualifies(block: Block) -> bool:
    """Return whether a loop's block holds only waits for stages, products that add to sums, and releases."""
    released = False
    for op in block.ops:
        if op is block.last_op or is_remade(op):
            continue
        if isinstance(op, BarrierArriveOp):
            released = True
        elif released or not (isinstance(op, BarrierWaitOp) or _is_sum(op, block)):
            return False
    return released


def _is_sum(op: Operation, block: Block) -> bool:
    """Return whether an op is a product of stages that adds to what the loop carries, and nothing else reads it."""
    if not isinstance(op, MmaOp) or not is_asynchronous(op) or not isinstance(op.a.type, SharedType):
        return False
    uses, end = list(op.result.uses), block.last_op
    if op.acc not in block.args[1:] or op.acc.uses.get_length() != 1 or len(uses) != 1:
        return False
    return uses[0].operation is end and uses[0].index == block.args.index(op.acc) - 1


def _turn(roles: RolesOp) -> tuple[Operation, Operation]:
    """Return what takes a group's turn and what gives it to the other group."""
    taken, given = [op for op in roles.consumer.block.ops if decisions.GROUP_TURN.on(op)]
    return taken, given


def _rewrite(roles: RolesOp, loop: scf.ForOp, products: Sequence[MmaOp]) -> None:
    before = Inserter(InsertPoint.before(loop), loop)
    taken, given = _turn(roles)
    ahead = Inserter(InsertPoint.before(taken), loop)
    initial = list(loop.iter_args)
    region = loop.detach_region(0)
    block, end = region.block, region.block.last_op
    assert end is not None
    places = [block.args.index(op.acc) - 1 for op in products]
    for op, place in zip(products, places, strict=True):
        initial[place] = ahead.value(MmaBeginOp(initial[place]))
        _start(block, op, initial[place].type, place)
    arrivals = [op for op in block.ops if isinstance(op, BarrierArriveOp)]
    insert = Inserter(InsertPoint.before(arrivals[0]), arrivals[0])
    insert.add(MmaRetireOp(len(products)))
    again = insert.binary("gt", block.args[0], loop.lb)
    for op in arrivals:
        slot = block.insert_arg(op.at.type, len(block.args))
        initial.append(before.constant(0))
        end.operands = [*end.operands, op.at]
        op.operands = [op.barriers, slot, again]
    new = scf.ForOp(loop.lb, loop.ub, loop.step, initial, region)
    new.attributes.update(loop.attributes)
    before.add(new)
    _finish(loop, new, places, arrivals, given)


def _start(block: Block, op: MmaOp, type_: Attribute, place: int) -> None:
    """Start a product where it stood, and carry its accumulators in flight."""
    old, argument = op.acc, block.insert_arg(type_, 1 + place)
    start = MmaStartOp(op.a, op.b, argument, op.compute.data)
    start.attributes.update(op.attributes)
    Inserter(InsertPoint.before(op), op).add(start)
    op.result.replace_all_uses_with(start.result)
    Rewriter.erase_op(op)
    assert isinstance(old, BlockArgument)
    block.erase_arg(old)


def _finish(
    old: scf.ForOp, new: scf.ForOp, places: Sequence[int], arrivals: Sequence[BarrierArriveOp], given: Operation
) -> None:
    """Wait for the last products after the loop, once the other group has its turn, and release their stage."""
    after = Inserter(InsertPoint.after(given), old)
    for place, (result, following) in enumerate(zip(old.results, new.results, strict=False)):
        result.replace_all_uses_with(after.value(MmaWaitOp(following)) if place in places else following)
    ran = after.binary("lt", new.lb, new.ub)
    for op, slot in zip(arrivals, new.results[-len(arrivals) :], strict=True):
        after.add(BarrierArriveOp(op.barriers, slot, ran))
    Rewriter.erase_op(old)
