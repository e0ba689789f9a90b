"""Marks the tiles that a consumers' loop loads one iteration before their use (Hopper).

    %first = load %S[%lo]
    scf.for %k ... iter_args(%now = %first) { %next = load %S[%k + step]; ...; yield %next }
  both loads become
    load ... {tessera_schedule.ahead = #builtin.int<1>}

Such a tile is held in registers from one iteration to the next, by `warp-specialize` for small tiles that the copy
engine cannot fetch, by `pipeline-products`, or by the kernel's author. The lowering lets threads load it where its uses
read it: a trip through shared memory would stop all consumers at a barrier in every iteration.
"""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp

from tessera.data import dataclass
from tessera.ir import decisions
from tessera.ir.tile.memory import LoadOp
from tessera.ir.tile.roles import RolesOp
from tessera.ir.walking import ops_in
from tessera.schedule.scheduled_pass import ScheduledPass


@dataclass(frozen=True)
class LoadAheadPass(ScheduledPass):
    """Marks the loads of tiles that loops of consumers carry."""

    name: ClassVar[str] = "load-ahead"

    def apply(self, module: ModuleOp) -> None:
        """Mark the loads of every loop in place."""
        for roles in [op for op in ops_in(module) if isinstance(op, RolesOp)]:
            for loop in [op for op in roles.consumer.walk() if isinstance(op, scf.ForOp)]:
                _mark(loop)


def _mark(loop: scf.ForOp) -> None:
    end = loop.body.block.last_op
    assert end is not None
    for values in zip(loop.iter_args, end.operands, strict=True):
        loads = [value.owner for value in values if isinstance(value.owner, LoadOp)]
        if len(loads) == 2:
            for load in loads:
                decisions.AHEAD.write(load)
