"""simplify-control-flow: removes branches and loops whose outcome is known, and values carried for nothing.

    %r = scf.if %true -> (f32) { scf.yield %a : f32 } else { scf.yield %b : f32 }
    %s = scf.for %i = %c0 to %c8 step %c8 iter_args(%acc = %a) -> (f32) { … scf.yield %n : f32 }
  become %a and the loop's body with %i = %c0 and %acc = %a. A loop of no trips becomes its initial values.

A value that every trip yields unchanged, or that nobody reads, is no longer carried.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.scf import ForOp, IfOp, YieldOp
from xdsl.ir import Block, BlockArgument, SSAValue
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern
from xdsl.rewriter import InsertPoint

from tessera.data import dataclass
from tessera.ir.passes import PatternPass
from tessera.ir.rewriting import matches_type
from tessera.ir.tile.elementwise import constant_value


def _inline(block: Block, op: IfOp | ForOp, arguments: Sequence[SSAValue], rewriter: PatternRewriter) -> None:
    """Replace `op` by the ops of `block`, whose results are what the block yields."""
    end = block.last_op
    assert isinstance(end, YieldOp)
    rewriter.inline_block(block, InsertPoint.before(op), arguments)
    rewriter.replace(op, [], list(end.arguments))
    rewriter.erase(end)


class _KnownCondition(RewritePattern):
    """`if true` becomes its first branch."""

    @matches_type
    def match_and_rewrite(self, op: IfOp, rewriter: PatternRewriter, /) -> None:
        condition = constant_value(op.cond)
        if condition is None:
            return
        block = (op.true_region if condition else op.false_region).first_block
        if block is None:
            rewriter.erase(op)
        else:
            _inline(block, op, (), rewriter)


class _SameResult(RewritePattern):
    """A result that both branches yield is that value."""

    @matches_type
    def match_and_rewrite(self, op: IfOp, rewriter: PatternRewriter, /) -> None:
        blocks = op.true_region.first_block, op.false_region.first_block
        if not op.results or blocks[0] is None or blocks[1] is None:
            return
        first, second = (block.last_op for block in blocks if block is not None)
        assert first is not None
        assert second is not None
        for result, one, other in zip(op.results, first.operands, second.operands, strict=True):
            if one is other:
                rewriter.replace_all_uses_with(result, one)


class _KnownTrips(RewritePattern):
    """A loop of one trip becomes its body, and one of none its initial values."""

    @matches_type
    def match_and_rewrite(self, op: ForOp, rewriter: PatternRewriter, /) -> None:
        lower, upper, step = (constant_value(v) for v in (op.lb, op.ub, op.step))
        if op.lb is op.ub:
            rewriter.replace(op, [], list(op.iter_args))
        elif lower is None or upper is None or step is None or step <= 0:
            return
        elif upper <= lower:
            rewriter.replace(op, [], list(op.iter_args))
        elif upper <= lower + step:
            _inline(op.body.block, op, [op.lb, *op.iter_args], rewriter)


class _CarriedInVain(RewritePattern):
    """A value that every trip passes on unchanged is its initial value; one that nobody reads is dropped."""

    @matches_type
    def match_and_rewrite(self, op: ForOp, rewriter: PatternRewriter, /) -> None:
        end = op.body.block.last_op
        assert isinstance(end, YieldOp)
        for carried, result, initial, yielded in zip(
            op.body.block.args[1:], op.res, op.iter_args, end.arguments, strict=True
        ):
            if yielded is carried or yielded is initial:
                rewriter.replace_all_uses_with(carried, initial)
                rewriter.replace_all_uses_with(result, initial)
        unread = [
            position
            for position, (carried, result) in enumerate(zip(op.body.block.args[1:], op.res, strict=True))
            if not result.uses and _only_feeds_itself(carried, end, position)
        ]
        if unread:
            _drop(op, end, set(unread), rewriter)


def _only_feeds_itself(carried: BlockArgument, end: YieldOp, position: int) -> bool:
    return all(use.operation is end and use.index == position for use in carried.uses)


def _drop(op: ForOp, end: YieldOp, unread: set[int], rewriter: PatternRewriter) -> None:
    """Replace a loop by one that does not carry the values at the positions `unread`."""
    kept = [position for position in range(len(op.iter_args)) if position not in unread]
    rewriter.replace(end, YieldOp(*(end.arguments[position] for position in kept)))
    body = op.detach_region(op.body)
    block = body.block
    for position in sorted(unread, reverse=True):
        block.erase_arg(block.args[position + 1])
    loop = ForOp(op.lb, op.ub, op.step, [op.iter_args[position] for position in kept], body)
    results: list[SSAValue | None] = [None] * len(op.iter_args)
    for new, position in zip(loop.res, kept, strict=True):
        results[position] = new
    rewriter.replace(op, loop, results)


@dataclass(frozen=True)
class SimplifyControlFlowPass(PatternPass):
    """Removes branches and loops whose outcome is known, and values that loops carry for nothing."""

    name = "simplify-control-flow"

    def patterns(self) -> Sequence[RewritePattern]:
        """Return the patterns."""
        return [_KnownCondition(), _SameResult(), _KnownTrips(), _CarriedInVain()]
