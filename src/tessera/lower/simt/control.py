"""SIMT lowering of loops and conditions: carried tiles become carried fragments."""

from __future__ import annotations

from collections.abc import Iterable

from xdsl.dialects import scf
from xdsl.ir import Attribute, Block, Region, SSAValue

from tessera.ir.target.types import FragmentType
from tessera.ir.target.warpgroup import PendingType as TargetPending
from tessera.ir.tile.types import element_of
from tessera.ir.tile.warpgroup import PendingType
from tessera.lower.simt.context import SimtContext, is_tile
from tessera.lower.simt.mma import pending_layout
from tessera.lower.simt.rules import lowers


def _carried(context: SimtContext, value: SSAValue, like: SSAValue) -> SSAValue:
    """Return a carried value as what `like` (the block argument or result it becomes) is placed as."""
    if is_tile(like):
        return context.tile(value, context.placements.layout_or_default(like))
    return context.scalar(value)


def _type(context: SimtContext, value: SSAValue) -> Attribute:
    if is_tile(value):
        return FragmentType.of(element_of(value.type), context.placements.layout_or_default(value))
    if isinstance(value.type, PendingType):
        layout = pending_layout(context.placements, value)
        return TargetPending(FragmentType.of(value.type.tile.element, layout))
    return value.type


def _enter(context: SimtContext, source: Block, types: Iterable[Attribute]) -> Block:
    """Return a new block with arguments standing for those of `source`."""
    block = Block(arg_types=list(types))
    for old, new in zip(source.args, block.args, strict=True):
        context.define(old, new)
    return block


def _yielded(context: SimtContext, values: Iterable[SSAValue], like: Iterable[SSAValue]) -> list[SSAValue]:
    return [_carried(context, value, target) for value, target in zip(values, like, strict=True)]


@lowers(scf.ForOp)
def _for(context: SimtContext, op: scf.ForOp) -> None:
    source = op.body.block
    arguments = source.args[1:]
    bounds = [context.scalar(v) for v in (op.lb, op.ub, op.step)]
    initial = _yielded(context, op.iter_args, arguments)
    body = _enter(context, source, [op.lb.type, *(_type(context, a) for a in arguments)])
    location = op.location
    with context.into(body):
        last = source.last_op
        assert last is not None
        context.lower_block([o for o in source.ops if o is not last])
        context.location = last.location
        context.emit(scf.YieldOp(*_yielded(context, last.operands, arguments)))
    context.location = location
    loop = context.emit(scf.ForOp(bounds[0], bounds[1], bounds[2], initial, Region(body)))
    for old, new in zip(op.results, loop.results, strict=True):
        context.define(old, new)


@lowers(scf.IfOp)
def _if(context: SimtContext, op: scf.IfOp) -> None:
    condition = context.scalar(op.cond)
    location = op.location
    regions: list[Region] = []
    for region in (op.true_region, op.false_region):
        if not region.blocks:
            regions.append(Region(Block([scf.YieldOp()])) if not op.results else Region())
            continue
        block = Block()
        with context.into(block):
            last = region.block.last_op
            yields = last if isinstance(last, scf.YieldOp) else None
            context.lower_block([o for o in region.block.ops if o is not yields])
            values = yields.operands if yields is not None else ()
            context.emit(scf.YieldOp(*_yielded(context, values, op.results)))
        regions.append(Region(block))
    context.location = location
    types = [_type(context, result) for result in op.results]
    lowered = context.emit(scf.IfOp(condition, types, regions[0], regions[1]))
    for old, new in zip(op.results, lowered.results, strict=True):
        context.define(old, new)


@lowers(scf.WhileOp)
def _while(context: SimtContext, op: scf.WhileOp) -> None:
    before, after = op.before_region.block, op.after_region.block
    location = op.location
    initial = _yielded(context, op.arguments, before.args)
    first = _enter(context, before, [_type(context, a) for a in before.args])
    with context.into(first):
        last = before.last_op
        assert isinstance(last, scf.ConditionOp)
        context.lower_block([o for o in before.ops if o is not last])
        context.emit(scf.ConditionOp(context.scalar(last.condition), *_yielded(context, last.args, after.args)))
    second = _enter(context, after, [_type(context, a) for a in after.args])
    with context.into(second):
        end = after.last_op
        assert end is not None
        context.lower_block([o for o in after.ops if o is not end])
        context.emit(scf.YieldOp(*_yielded(context, end.operands, before.args)))
    context.location = location
    types = [_type(context, result) for result in op.results]
    lowered = context.emit(scf.WhileOp(initial, types, Region(first), Region(second)))
    for old, new in zip(op.results, lowered.results, strict=True):
        context.define(old, new)
