"""Distributes the last tiles of a launch evenly over its programs, by steps of the mainloop (stream-K).

Programs that walk whole tiles leave multiprocessors idle while the last of them are done: 512 tiles on 132
multiprocessors take as long as 528. Here whole tiles are walked in all full rounds but the last; the steps of the tiles
that are left, one round and a part of one, form one sequence, of which each program does an equal part. Where a launch
has two programs or more for each tile, equally many share it, so that those which do the same steps of several tiles
find in the cache what the others fetch; no more take part than `sharers_of` allows.

Before::

    grid { %sum = scf.for %k = %lo to %hi ... iter_args(%acc = 0) { yield mma ..., %acc }; epilogue; store }

After::

    grid {
      %first, %last, %owner, %others = share <steps of the loop>
      %sum = scf.for %k = <step %first> to <step %last> ...
      if %owner { %all = collect_sums %sum of %others; epilogue; store } else { leave_sums %sum }
    }

The program with a tile's last steps owns it. Every program goes through its part of the sequence from the end: the tile
of which it has the first steps, but not the last, comes first, even before its whole tiles; the one that it owns
without having all its steps comes last. So partial sums are written at once and without waiting, a program waits only
for programs with lower numbers, which have started before it, and what it waits for was done long ago. Hence no
deadlock even where programs do not all run at the same time. The sums are added in a fixed order, without atomics: the
result has the same bits in every run on a GPU with as many multiprocessors.

The launch has to be persistent: where `warp-specialize` finds no roles, programs take whole tiles, which the lowering
notes.
"""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects import scf
from xdsl.rewriter import InsertPoint

from tessera.data import dataclass
from tessera.ir import decisions
from tessera.ir.inserter import Inserter, ceildiv
from tessera.ir.loops import depends_on
from tessera.ir.notes import Unfit
from tessera.ir.tile.stream import CollectSumsOp, LeaveSumsOp, ShareOp
from tessera.ir.tile.structure import GridOp
from tessera.ir.tile.types import TileType
from tessera.schedule.hopper.split_k import sum_loop
from tessera.schedule.leaders import finish_in_one, rest_after
from tessera.schedule.products import why_no_shares
from tessera.schedule.scheduled_pass import AskedPass


@dataclass(frozen=True)
class StreamKPass(AskedPass):
    """Distributes the last tiles of launches where the caller asks for it, or `fit-blocks` chose it.

    Args:
        target: the GPU.
        knobs: `stream_k` = 1 distributes steps, unless `cluster` or `ping_pong` are asked for too.
    """

    name: ClassVar[str] = "stream-k"
    knob: ClassVar[str] = "stream_k"

    def asked(self, grid: GridOp) -> int | None:
        """Return the knob's value, or what was decided of a launch."""
        given = super().asked(grid)
        return decisions.SHARES.of(grid) if given is None else given

    def fulfil(self, grid: GridOp, asked: int) -> None:
        """Distribute the steps of a launch.

        Raises:
            Unfit: its programs are not persistent or share tiles, or it has no loop that can be divided.
        """
        self._check(grid)
        _share(grid, _shared_loop(grid))

    def _check(self, grid: GridOp) -> None:
        cluster = self.knobs.cluster or decisions.CLUSTER.of(grid) or 1
        if (reason := why_no_shares(cluster, bool(self.knobs.ping_pong))) is not None:
            raise Unfit(reason)


def may_share(grid: GridOp) -> bool:
    """Return whether the steps of a launch's tiles can be distributed."""
    try:
        _shared_loop(grid)
    except Unfit:
        return False
    return True


def _shared_loop(grid: GridOp) -> scf.ForOp:
    """Return the loop whose steps can be distributed.

    Raises:
        Unfit: there is none.
    """
    loop = sum_loop(grid)
    if any(depends_on(bound, grid.body.block) for bound in (loop.lb, loop.ub, loop.step)):
        raise Unfit("the steps of the loop depend on the tile")
    if not any(isinstance(result.type, TileType) for result in loop.results):
        raise Unfit("the loop sums nothing")
    return loop


def _share(grid: GridOp, loop: scf.ForOp) -> None:
    sums = [result for result in loop.results if isinstance(result.type, TileType)]
    insert = Inserter(InsertPoint.before(loop), loop)
    length = insert.binary("sub", loop.ub, loop.lb)
    share = ShareOp(ceildiv(insert, length, loop.step, insert.constant(1)))
    insert.add(share)
    start, stop = (
        insert.binary("add", loop.lb, insert.binary("mul", step, loop.step)) for step in (share.first, share.last)
    )
    loop.operands[0], loop.operands[1] = start, insert.binary("minimum", loop.ub, stop)
    rest = rest_after(loop)
    finish_in_one(loop, rest, share.owner, CollectSumsOp(share.others, sums), LeaveSumsOp(sums))
    decisions.STREAM_K.write(grid)
