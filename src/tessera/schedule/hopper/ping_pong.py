"""Two groups of consumers with tiles of their own: one's products run during the other's epilogue (Hopper).

`warp-specialize` lets all consumer warps work on one tile, so that the matrix units idle during its
epilogue. With `ping_pong`, a program's tiles go to two groups of four warps in turn. The producer serves both from
one ring, in the order of the tiles; a group skips the stages of the other's tiles::

    roles(%slot = 0, %parity = 0, %turn = 0) producer { all tiles } consumer groups 2 {
      %group = role_group
      %own = (%slot, %parity) moved on by %group * %steps stages
      barrier_wait %turns[%group] parity (%turn + 1 - %group) mod 2
      the loop, from %own to %end
      barrier_arrive %turns[1 - %group]
      role_end %end moved on by (1 - %group) * %steps stages, 1 - %turn
    }

A group starts its loop when the other one has seen all stages of the tile before it arrive. Otherwise it could
mistake the parity of a stage several rounds of the ring ahead for that of an earlier round. This also starts products
in the order of the tiles and gives those of one tile the matrix units to themselves.

Each group has its own copy of the shared buffers that consumers write (`GroupBuffersPass`)::

    %both = alloc_shared [2, ...]; roles ... consumer groups 2 { %mine = shared_view %both[%group] }

All tiles must have the same number of steps, so that a group knows where the other's stages end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from tessera.data import dataclass
from tessera.ir import decisions
from tessera.ir.inserter import Inserter, ceildiv
from tessera.ir.loops import depends_on
from tessera.ir.notes import Unfit
from tessera.ir.tile.memory import LoadOp
from tessera.ir.tile.roles import BarrierArriveOp, BarrierWaitOp, RoleGroupOp, RolesOp
from tessera.ir.tile.shared import AllocSharedOp, SharedViewOp
from tessera.ir.tile.structure import GridOp
from tessera.ir.tile.types import SharedType
from tessera.ir.walking import ops_in
from tessera.schedule.gpu.copies import qualifies
from tessera.schedule.hopper.rings import are_dependent
from tessera.schedule.knobs import Knobs
from tessera.schedule.products import why_no_turns
from tessera.schedule.resources import is_private
from tessera.schedule.scheduled_pass import ScheduledPass

GROUPS = 2


def is_plain(loop: scf.ForOp) -> bool:
    """Return whether no product of a loop waits for another one of the same iteration."""
    return not are_dependent(loop)


def check_groups(
    grid: GridOp, loop: scf.ForOp, fetched: Sequence[LoadOp], once: Sequence[object], knobs: Knobs
) -> None:
    """Check that two groups of consumers can take a launch's tiles in turn.

    Args:
        grid: the launch.
        loop: its loop over steps.
        fetched: the loads of operands that go through the producer's ring.
        once: what the producer fetches once for each tile.
        knobs: what was asked for.

    Raises:
        Unfit: they cannot.
    """
    shares_tiles = decisions.SPLIT_K.on(grid) or decisions.STREAM_K.on(grid)
    if (reason := why_no_turns(knobs.num_warps, shares_tiles)) is not None:
        raise Unfit(reason)
    if any(depends_on(bound, grid.body.block) for bound in (loop.lb, loop.ub, loop.step)):
        raise Unfit("tiles differ in their number of steps")
    others = [op for op in ops_in(grid) if isinstance(op, LoadOp) and qualifies(op) and op not in fetched]
    if once or others:
        raise Unfit("an operand of a product is loaded outside of the loop")


@dataclass
class Turns:
    """The tiles of two groups of consumers around one tile of one of them.

    Args:
        barriers: one per group: it may start its loop.
        group: the number of the group.
        other: the number of the other one.
        before: stages of the tile that the other group takes before this one.
        after: stages of the tile that it takes after this one.
        turn: the parity of the number of the group's tile.
        following: that of its next tile.
        stages: depth of the ring.
    """

    barriers: SSAValue
    group: SSAValue
    other: SSAValue
    before: SSAValue
    after: SSAValue
    turn: SSAValue
    following: SSAValue
    stages: int

    @classmethod
    def of(cls, loop: scf.ForOp, barriers: SSAValue, turn: SSAValue, stages: int) -> Turns:
        """Count the steps of a loop in front of it.

        Args:
            loop: the loop.
            barriers: one per group.
            turn: the parity of the number of the group's tile.
            stages: depth of the ring.
        """
        insert = Inserter(InsertPoint.before(loop), loop)
        group, one = insert.value(RoleGroupOp()), insert.constant(1)
        other = insert.binary("sub", one, group)
        count = ceildiv(insert, insert.binary("sub", loop.ub, loop.lb), loop.step, one)
        steps = insert.binary("maximum", count, insert.constant(0))
        around = (insert.binary("mul", group, steps), insert.binary("mul", other, steps))
        return cls(barriers, group, other, *around, turn, insert.binary("sub", one, turn), stages)

    def take(self, loop: scf.ForOp) -> None:
        """Wait for the group's turn, right before the loop, and hand it to the other group after the loop."""
        insert = Inserter(InsertPoint.before(loop), loop)
        # The first group's first turn waits for nobody: the phase before the first counts as ended, and has odd parity.
        parity = insert.binary("mod", insert.binary("add", self.turn, self.other), insert.constant(2))
        taken, given = BarrierWaitOp(self.barriers, self.group, parity), BarrierArriveOp(self.barriers, self.other)
        insert.add(taken)
        Inserter(InsertPoint.after(loop), loop).add(given)
        for op in (taken, given):
            decisions.GROUP_TURN.write(op)

    def skip(self, insert: Inserter, place: Sequence[SSAValue], count: SSAValue) -> Sequence[SSAValue]:
        """Return the slot and the parity so many stages further around the ring."""
        slot, parity = place
        depth, two = insert.constant(self.stages), insert.constant(2)
        total = insert.binary("add", slot, count)
        rounds = insert.binary("add", insert.binary("floordiv", total, depth), parity)
        return insert.binary("mod", total, depth), insert.binary("mod", rounds, two)


@dataclass(frozen=True)
class GroupBuffersPass(ScheduledPass):
    """Gives each of several consumer groups its own copy of the buffers that only consumers use."""

    name: ClassVar[str] = "group-buffers"

    def apply(self, module: ModuleOp) -> None:
        """Rewrite every kernel of the module in place."""
        for roles in [op for op in ops_in(module) if isinstance(op, RolesOp) and op.groups.data > 1]:
            block = roles.parent
            assert block is not None
            for alloc in [op for op in block.ops if isinstance(op, AllocSharedOp)]:
                if is_private(alloc, roles):
                    _divide(alloc, roles)


def _divide(alloc: AllocSharedOp, roles: RolesOp) -> None:
    """Replace a buffer by one for each group."""
    type_ = alloc.result.type
    assert isinstance(type_, SharedType)
    groups = AllocSharedOp((roles.groups.data, *type_.shape), type_.element, type_.swizzle.data)
    Inserter(InsertPoint.before(alloc), alloc).add(groups)
    insert = Inserter(InsertPoint.at_start(roles.consumer.block), alloc)
    mine = insert.value(SharedViewOp(groups.result, insert.value(RoleGroupOp())))
    alloc.result.replace_all_uses_with(mine)
    Rewriter.erase_op(alloc)
