"""Questions about loops and what they compute, and the rewrites of loops that several passes need."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import scf
from xdsl.ir import Block, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from tessera.ir.effects import Effect, effect_of
from tessera.ir.inserter import Inserter


def depends_on(value: SSAValue, block: Block) -> bool:
    """Return whether a value follows from a block's arguments: of a grid's body, from where in it a program is."""
    owner = value.owner
    if isinstance(owner, Block):
        return owner is block
    return any(depends_on(operand, block) for operand in owner.operands)


def movable(value: SSAValue, loop: scf.ForOp) -> bool:
    """Return whether a loop's value can be computed for a later iteration: it depends on the counter only."""
    owner = value.owner
    if isinstance(owner, Block):
        return owner is not loop.body.block or value is loop.body.block.args[0]
    if not loop.body.block.is_ancestor(owner):
        return True
    if owner.regions or effect_of(owner) > Effect.PURE:
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
