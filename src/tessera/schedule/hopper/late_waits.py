"""Keeps one step's products in flight while the next step's start, for consumers that work alone (Hopper).

Before, in a group of four warps of consumers::

    scf.for ... iter_args(%acc, %slot, ...) {
      barrier_wait %full[%slot]; %next = mma %a[%slot], %b[%slot], %acc; barrier_arrive %empty[%slot]
    }

After::

    %0 = mma_begin %acc                    (before the group's turn, if there are two)
    scf.for ... iter_args(%sum = %0, %slot, ..., %last) {
      barrier_wait %full[%slot]; %next = mma_start %a[%slot], %b[%slot], %sum
      mma_retire pending 1; barrier_arrive %empty[%last] when this is not the first step
      yield %next, ..., %slot
    }
    %acc = mma_wait; barrier_arrive %empty[%last] when there was a step

Waiting for each step's products before the next ones start would leave the matrix units idle in between. Two warpgroups
that work on one tile fill these gaps for each other, so that their loops stay as they are. A step may have several
products, for several sums or for one: those of one sum follow each other (`schedule.dependences.links_of`).
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
from tessera.ir.walking import ops_in
from tessera.schedule.dependences import is_asynchronous, is_link, is_remade, links_of
from tessera.schedule.products import GROUP_WARPS
from tessera.schedule.scheduled_pass import ScheduledPass


@dataclass(frozen=True)
class LateWaitsPass(ScheduledPass):
    """Rewrites the loops of consumer groups that do nothing but products that add to carried sums."""

    name: ClassVar[str] = "late-waits"

    def apply(self, module: ModuleOp) -> None:
        """Rewrite every loop of the module in place."""
        for roles in [op for op in ops_in(module) if isinstance(op, RolesOp)]:
            grid = roles.parent_op()
            if grid is None or decisions.NUM_WARPS.of(grid) != GROUP_WARPS:
                continue
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
    if is_link(op):
        return _first(op).acc in block.args[1:]
    carried, uses = _first(op).acc, list(op.result.uses)
    if carried not in block.args[1:] or carried.uses.get_length() != 1 or len(uses) != 1:
        return False
    return uses[0].operation is block.last_op and uses[0].index == block.args.index(carried) - 1


def _first(op: MmaOp) -> MmaOp:
    """Return the first product of a sum of an iteration."""
    return next(iter(links_of(op)), op)


def _turn(roles: RolesOp, loop: scf.ForOp) -> tuple[Operation, Operation]:
    """Return what takes a group's turn and what gives it to the other group: where there is one group, the loop."""
    turns = [op for op in roles.consumer.block.ops if decisions.GROUP_TURN.on(op)]
    taken, given = turns or (loop, loop)
    return taken, given


def _rewrite(roles: RolesOp, loop: scf.ForOp, products: Sequence[MmaOp]) -> None:
    before = Inserter(InsertPoint.before(loop), loop)
    taken, given = _turn(roles, loop)
    ahead = Inserter(InsertPoint.before(taken), loop)
    initial = list(loop.iter_args)
    region = loop.detach_region(0)
    block, end = region.block, region.block.last_op
    assert end is not None
    firsts = [op for op in products if not links_of(op)]
    places = [block.args.index(op.acc) - 1 for op in firsts]
    for op, place in zip(firsts, places, strict=True):
        initial[place] = ahead.value(MmaBeginOp(initial[place]))
        _carry(block, op, initial[place].type, place)
    for op in products:
        _start(op)
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


def _carry(block: Block, op: MmaOp, type_: Attribute, place: int) -> None:
    """Carry the accumulators of a product in flight."""
    old, argument = op.acc, block.insert_arg(type_, 1 + place)
    op.operands[2] = argument
    assert isinstance(old, BlockArgument)
    block.erase_arg(old)


def _start(op: MmaOp) -> None:
    """Start a product where it stood."""
    start = MmaStartOp(op.a, op.b, op.acc, op.compute.data)
    start.attributes.update(op.attributes)
    Inserter(InsertPoint.before(op), op).add(start)
    op.result.replace_all_uses_with(start.result)
    Rewriter.erase_op(op)


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
