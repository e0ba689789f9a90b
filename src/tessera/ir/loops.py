"""Questions about loops and what they compute, and the rewrites of loops that several passes need."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.traits import IsTerminator

from tessera.ir.effects import Effect, effect_of
from tessera.ir.inserter import Inserter
from tessera.ir.tile.structure import GridOp, KernelOp
from tessera.ir.tile.writes import is_settled_scalar
from tessera.ir.traits import has_trait


def depends_on(value: SSAValue, block: Block) -> bool:
    """Return whether a value follows from a block's arguments: of a grid's body, from where in it a program is."""
    owner = value.owner
    if isinstance(owner, Block):
        return owner is block
    return any(depends_on(operand, block) for operand in owner.operands)


def arguments_of(value: SSAValue, block: Block) -> set[int]:
    """Return which of a block's arguments a value follows from, but for those that only bound a loop's counter."""
    owner = value.owner
    if isinstance(owner, Block):
        return {list(block.args).index(value)} if owner is block else set()  # pyright: ignore[reportArgumentType]
    return {place for operand in owner.operands for place in arguments_of(operand, block)}


def follows_from(value: SSAValue, kind: type[Operation]) -> bool:
    """Return whether a value may follow from what an op of a kind gives."""
    owner = value.owner
    if isinstance(owner, Operation):
        return isinstance(owner, kind) or any(follows_from(operand, kind) for operand in owner.operands)
    around = owner.parent_op()
    if isinstance(around, GridOp | KernelOp):
        return False
    if isinstance(around, scf.ForOp) and value is owner.args[0]:
        return any(follows_from(bound, kind) for bound in (around.lb, around.ub, around.step))
    return True  # carried by a loop: not followed


def movable(value: SSAValue, loop: scf.ForOp) -> bool:
    """Return whether a loop's value can be computed for a later iteration.

    It depends on the counter only, and on scalars in memory that the launch leaves alone.
    """
    owner = value.owner
    if isinstance(owner, Block):
        return owner is not loop.body.block or value is loop.body.block.args[0]
    if not loop.body.block.is_ancestor(owner):
        return True
    if owner.regions or (effect_of(owner) > Effect.PURE and not is_settled_scalar(owner)):
        return False
    return all(movable(operand, loop) for operand in owner.operands)


def remade(insert: Inserter, value: SSAValue, loop: scf.ForOp, known: dict[SSAValue, SSAValue]) -> SSAValue:
    """Return `value` computed for another iteration; `known` maps the counter to its new value."""
    if value in known:
        return known[value]
    owner = value.owner
    if isinstance(owner, Block) or not loop.body.block.is_ancestor(owner):
        return value
    operands = [remade(insert, operand, loop, known) for operand in owner.operands]
    clone = owner.clone()
    clone.operands = operands
    insert.add(clone)
    for old, new in zip(owner.results, clone.results, strict=True):
        known[old] = new
    return known[value]


def with_arguments(loop: scf.ForOp, initial: Sequence[SSAValue]) -> scf.ForOp:
    """Return the loop with more carried values (the caller adds their next values to what it yields)."""
    region = loop.detach_region(0)
    for value in initial:
        region.block.insert_arg(value.type, len(region.block.args))
    new = scf.ForOp(loop.lb, loop.ub, loop.step, [*loop.iter_args, *initial], region)
    new.location = loop.location
    new.attributes.update(loop.attributes)
    Rewriter.insert_op(new, InsertPoint.before(loop))
    for old, result in zip(loop.results, new.results, strict=False):
        old.replace_all_uses_with(result)
    Rewriter.erase_op(loop)
    return new


def without_unused(loop: scf.ForOp) -> scf.ForOp:
    """Return the loop without the carried values that nothing but their own next values needs."""
    unused = _unused(loop)
    if not unused:
        return loop
    block, end = loop.body.block, loop.body.block.last_op
    assert end is not None
    kept = [i for i in range(len(loop.iter_args)) if i not in unused]
    end.operands = [end.operands[i] for i in kept]
    for op in reversed([op for op in block.walk() if any(op in ops for ops in unused.values())]):
        Rewriter.erase_op(op)
    for i in sorted(unused, reverse=True):
        block.erase_arg(block.args[i + 1])
    new = scf.ForOp(loop.lb, loop.ub, loop.step, [loop.iter_args[i] for i in kept], loop.detach_region(0))
    new.location = loop.location
    new.attributes.update(loop.attributes)
    Rewriter.insert_op(new, InsertPoint.before(loop))
    for i, result in zip(kept, new.results, strict=True):
        loop.results[i].replace_all_uses_with(result)
    Rewriter.erase_op(loop)
    return new


def _unused(loop: scf.ForOp) -> dict[int, list[Operation]]:
    """Return the numbers of the carried values that only carried values like them need, and the ops between."""
    found: dict[int, list[Operation]] = {}
    needs: dict[int, set[int]] = {}
    for i, result in enumerate(loop.results):
        if not result.uses:
            reached = _reached(loop, loop.body.block.args[i + 1])
            if reached is not None:
                found[i], needs[i] = reached
    while wrong := [i for i in found if not needs[i] <= found.keys()]:
        for i in wrong:
            del found[i]
    return found


def _reached(loop: scf.ForOp, value: SSAValue) -> tuple[list[Operation], set[int]] | None:
    """Return the pure ops that a loop's value leads to, and which carried values; None where it leads anywhere else."""
    end = loop.body.block.last_op
    ops, ends, rest = dict[Operation, None](), set[int](), [value]
    while rest:
        for use in rest.pop().uses:
            op = use.operation
            if op is end:
                ends.add(use.index)
            elif op.regions or effect_of(op) > Effect.PURE or has_trait(op, IsTerminator):
                return None
            elif op not in ops:
                ops[op] = None
                rest += op.results
    return list(ops), ends
