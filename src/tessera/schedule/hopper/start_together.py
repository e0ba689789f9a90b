"""Starts products that do not need each other's sums one after the other, and waits for them once (Hopper).

Before, where a step has two products, or one whose tile is computed in parts::

    %s0 = mma %a, %b0, %acc0
    %s1 = mma %a, %b1, %acc1

After::

    %p0 = mma_start %a, %b0, %acc0
    %p1 = mma_start %a, %b1, %acc1
    %s0 = mma_wait %p0 pending 0
    %s1 = mma_wait %p1 pending 0

A wait after each product would leave the matrix units idle until the warpgroup has started the next one. A product that
goes on with the sums of the one before needs no wait for them either: products of one warpgroup end in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from tessera.data import dataclass
from tessera.ir.inserter import Inserter
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.roles import BarrierWaitOp, RolesOp
from tessera.ir.tile.warpgroup import MmaStartOp, MmaWaitOp
from tessera.ir.walking import ops_in
from tessera.schedule.dependences import is_asynchronous, is_link, is_remade
from tessera.schedule.scheduled_pass import ScheduledPass


@dataclass(frozen=True)
class StartTogetherPass(ScheduledPass):
    """Rewrites runs of products in the roles of consumers."""

    name: ClassVar[str] = "start-together"

    def apply(self, module: ModuleOp) -> None:
        """Rewrite every run of products of the module in place."""
        for roles in [op for op in ops_in(module) if isinstance(op, RolesOp)]:
            blocks = [block for op in ops_in(roles) for region in op.regions for block in region.blocks]
            for run in [run for block in blocks for run in _runs(block)]:
                _start(run)


def _runs(block: Block) -> Iterator[list[MmaOp]]:
    """Yield products between which nothing reads the sums of one but a product that goes on with them."""
    run: list[MmaOp] = []
    made: set[SSAValue] = set()
    for op in block.ops:
        if isinstance(op, MmaOp) and is_asynchronous(op) and not {op.a, op.b} & made and _goes_on(op, made):
            run.append(op)
            made.add(op.result)
        elif (is_remade(op) or isinstance(op, BarrierWaitOp)) and not made & set(op.operands):
            continue
        else:
            if len(run) > 1:
                yield run
            run, made = [], set()


def _goes_on(op: MmaOp, made: set[SSAValue]) -> bool:
    """Return whether a product adds to sums that are there, or is the only reader of those of a product before it."""
    return op.acc not in made or (isinstance(op.acc.owner, MmaOp) and is_link(op.acc.owner))


def _start(run: Sequence[MmaOp]) -> None:
    started = dict[SSAValue, SSAValue]()
    left = list[tuple[MmaOp, MmaStartOp]]()
    for op in run:
        start = MmaStartOp(op.a, op.b, started.get(op.acc, op.acc), op.compute.data)
        start.attributes.update(op.attributes)
        Inserter(InsertPoint.before(op), op).add(start)
        if is_link(op) and next(iter(op.result.uses)).operation in run:
            started[op.result] = start.result
        else:
            left.append((op, start))
    insert = Inserter(InsertPoint.after(run[-1]), run[-1])
    for op, start in left:
        insert.like = op
        op.result.replace_all_uses_with(insert.value(MmaWaitOp(start.result)))
    for op in reversed(run):
        Rewriter.erase_op(op)
