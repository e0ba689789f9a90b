"""Tiles that several programs compute, and one of them, the leader, finishes."""

from __future__ import annotations

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint

from tessera.ir import decisions
from tessera.ir.inserter import Inserter
from tessera.ir.tile.split import PartialSumOp
from tessera.ir.tile.stream import CollectSumsOp


def rest_after(loop: Operation) -> Block:
    """Move what follows a loop, or another op, to a block of its own."""
    rest = Block()
    following = loop.next_op
    while following is not None:
        current, following = following, following.next_op
        current.detach()
        rest.add_op(current)
    return rest


def finish_in_one(
    loop: Operation, rest: Block, leads: SSAValue, total: PartialSumOp | CollectSumsOp, send: Operation
) -> None:
    """Let a tile's leading program go on with the total sums, and the others send theirs.

    Args:
        loop: the last op before: the loop that sums.
        rest: what followed it.
        leads: whether this program is the one.
        total: adds up the loop's results.
        send: what the others do instead.
    """
    for old, new in zip(total.partials, total.sums, strict=True):
        old.replace_uses_with_if(new, lambda use: use.operation not in (total, send))
    other = Block([send])
    if rest.first_op is None:
        rest.add_op(total)
    else:
        rest.insert_op_before(total, rest.first_op)
    for op in (total, send):
        op.location = loop.location
    for block in (rest, other):
        block.add_op(scf.YieldOp())
    branch = scf.IfOp(leads, [], Region(rest), Region(other))
    decisions.LEADER.write(branch)
    block = loop.parent_block()
    assert block is not None
    Inserter(InsertPoint.at_end(block), loop).add(branch)
