"""Hands back what a tile keeps once the last step has read it, and not behind the tile's stores (Hopper).

Before, in a consumer's block, where %q is fetched once for a tile::

    barrier_wait %full[0]
    scf.for %i = %lb to %ub step %n { %s = mma %q, %k; ...; barrier_wait V; %o = mma %p, %v, ... }
    barrier_arrive %empty[0]
    the tile's results are stored

After::

    barrier_wait %full[0]
    scf.for %i = %lb to %ub step %n {
      %s = mma %q, %k; barrier_arrive %empty[0] when %i + %n >= %ub; ...; barrier_wait V; %o = mma %p, %v, ...
    }
    barrier_arrive %empty[0] when %lb >= %ub
    the tile's results are stored

so that the next tile's is on its way while the rest of the last step runs and results are stored. Loops whose products
do not wait for each other stay as they are: their steps end with what they read.
"""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.rewriter import InsertPoint, Rewriter

from tessera.data import dataclass
from tessera.ir.inserter import Inserter
from tessera.ir.tile.roles import BarrierArriveOp, RolesOp
from tessera.ir.walking import ops_in
from tessera.schedule.dependences import ring_of, rings_read
from tessera.schedule.scheduled_pass import ScheduledPass


@dataclass(frozen=True)
class ReleaseEarlyPass(ScheduledPass):
    """Moves releases of what tiles keep into the loops that read it last."""

    name: ClassVar[str] = "release-early"

    def apply(self, module: ModuleOp) -> None:
        """Rewrite every consumer of the module in place."""
        for roles in [op for op in ops_in(module) if isinstance(op, RolesOp)]:
            for op in [op for op in roles.consumer.block.ops if isinstance(op, BarrierArriveOp)]:
                ring = ring_of(op.barriers)
                if ring is not None and op.when is None:
                    _release(op, ring)


def _release(arrive: BarrierArriveOp, ring: int) -> None:
    loop = arrive.prev_op
    while loop is not None and ring not in rings_read(loop):
        loop = loop.prev_op
    if not isinstance(loop, scf.ForOp):
        return
    last = [op for op in loop.body.block.ops if ring in rings_read(op)][-1]
    inside = _after(last, arrive)
    following = inside.binary("add", loop.body.block.args[0], loop.step)
    inside.add(BarrierArriveOp(arrive.barriers, arrive.at, inside.binary("ge", following, loop.ub)))
    behind = _after(loop, arrive)
    behind.add(BarrierArriveOp(arrive.barriers, arrive.at, behind.binary("ge", loop.lb, loop.ub)))
    Rewriter.erase_op(arrive)


def _after(op: Operation, like: Operation) -> Inserter:
    return Inserter(InsertPoint.after(op), like)
