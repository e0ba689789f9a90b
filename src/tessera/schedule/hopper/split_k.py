"""Splits the loop of a product over the programs of a cluster, for tiles too few to fill the GPU (split-K).

Before::

    grid { %sum = scf.for %k = %lo to %hi ... iter_args(%acc = 0) { yield mma ..., %acc }; epilogue; store }

After, with S programs for each tile::

    grid {
      %buffer = alloc_shared; %links = alloc_links ranks S; %rank = cluster_rank
      %sum = scf.for %k = <the rank-th part of the steps> ...
      if %rank == 0 { %all = partial_sum %links, %sum by %buffer; epilogue; store }
      else { partial_send %links, %sum by %buffer }
    }

The partial sums travel through the cluster's shared memory and are added in the order of the ranks, so that no atomics
and no second launch are needed and the result has the same bits in every run.
"""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects import scf
from xdsl.ir import Operation
from xdsl.rewriter import InsertPoint

from tessera.data import dataclass
from tessera.ir import decisions
from tessera.ir.effects import acts
from tessera.ir.inserter import Inserter, ceildiv
from tessera.ir.notes import Unfit
from tessera.ir.tile.cluster import ClusterRankOp
from tessera.ir.tile.elementwise import is_zero
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.shared import AllocSharedOp
from tessera.ir.tile.split import AllocLinksOp, PartialSendOp, PartialSumOp
from tessera.ir.tile.structure import GridOp
from tessera.ir.tile.types import TileType, element_of, shape_of
from tessera.ir.tile.writes import Stores
from tessera.ir.walking import ops_in
from tessera.schedule.leaders import finish_in_one, rest_after
from tessera.schedule.loops import only_loop
from tessera.schedule.scheduled_pass import AskedPass


@dataclass(frozen=True)
class SplitKPass(AskedPass):
    """Splits the launches where the caller asks for it.

    Args:
        target: the GPU.
        knobs: `split_k` is the number of programs for each tile.
    """

    name: ClassVar[str] = "split-k"
    knob: ClassVar[str] = "split_k"

    def fulfil(self, grid: GridOp, asked: int) -> None:
        """Split the loop of a launch.

        Raises:
            Unfit: the launch has no loop that can be split.
        """
        _split(grid, sum_loop(grid), asked)


def sum_loop(grid: GridOp) -> scf.ForOp:
    """Return the loop of a launch whose sums of products can be split.

    Raises:
        Unfit: it has none.
    """
    loop = only_loop(grid)
    end = loop.body.block.last_op
    assert end is not None
    for initial, argument, following in zip(loop.iter_args, loop.body.block.args[1:], end.operands, strict=True):
        if not isinstance(following.owner, MmaOp) or following.owner.acc is not argument:
            raise Unfit("the loop carries something that is not a sum of products")
        if following.owner.sums_in_order:
            raise Unfit("strict gives the order of sums")
        if len(list(argument.uses)) > 1:
            raise Unfit("a partial sum is used in the loop")
        if not is_zero(initial):
            raise Unfit("a sum starts at a value other than zero")
    for op in grid.walk():
        if isinstance(op, Stores) and not _comes_after(op, loop):
            raise Unfit("something is written before the sum is complete")
    if any(map(acts, ops_in(loop))):
        raise Unfit("the loop does more than to add products: a copy by hand, a barrier")
    return loop


def _comes_after(op: Operation, loop: scf.ForOp) -> bool:
    outermost = op
    while outermost.parent_block() is not loop.parent_block():
        parent = outermost.parent_op()
        assert parent is not None
        outermost = parent
    return loop.is_before_in_block(outermost)


def _split(grid: GridOp, loop: scf.ForOp, ranks: int) -> None:
    sums = [result for result in loop.results if isinstance(result.type, TileType)]
    insert = Inserter(InsertPoint.before(loop), loop)
    buffers = [insert.value(AllocSharedOp(shape_of(s.type), element_of(s.type))) for s in sums]
    links = insert.value(AllocLinksOp(ranks))
    rank = insert.value(ClusterRankOp())
    one = insert.constant(1)
    length = insert.binary("sub", loop.ub, loop.lb)
    steps = ceildiv(insert, length, loop.step, one)
    part = insert.binary("mul", ceildiv(insert, steps, insert.constant(ranks), one), loop.step)
    start = insert.binary("add", loop.lb, insert.binary("mul", rank, part))
    stop = insert.binary("minimum", loop.ub, insert.binary("add", start, part))
    loop.operands[0], loop.operands[1] = start, stop
    then = rest_after(loop)
    after = Inserter(InsertPoint.after(loop), loop)
    first = after.binary("eq", rank, after.constant(0))
    finish_in_one(loop, then, first, PartialSumOp(links, sums, buffers), PartialSendOp(links, sums, buffers))
    decisions.SPLIT_K.write(grid, ranks)
    decisions.CLUSTER.write(grid, ranks)
