"""SIMT lowering of products that are started and waited for later."""

from __future__ import annotations

from tessera.errors import CompilerFault
from tessera.ir import decisions
from tessera.ir.target import warpgroup as target
from tessera.ir.target.warpgroup import (
    OrderOp,
    TensorCoreBeginOp,
    TensorCoreRetireOp,
    TensorCoreStartOp,
    TensorCoreWaitOp,
)
from tessera.ir.tile.warpgroup import MmaBeginOp, MmaRetireOp, MmaStartOp, MmaWaitOp, PendingType, TurnOp
from tessera.lower.simt.context import SimtContext
from tessera.lower.simt.mma import pending_layout, plan_mma, warpgroup_operands
from tessera.lower.simt.placement import MATRIX, Placements, infers
from tessera.lower.simt.rules import lowers


@infers(MmaWaitOp)
def _place_wait(placements: Placements, op: MmaWaitOp) -> None:
    placements.place(op.result, plan_mma(placements, op.start).accumulator, MATRIX)


@lowers(MmaStartOp)
def _start(context: SimtContext, op: MmaStartOp) -> None:
    plan = plan_mma(context.placements, op)
    if plan.warpgroup is None:
        raise CompilerFault("a product is started that no warpgroup instruction computes")
    a, b = warpgroup_operands(context, op)
    under_way = isinstance(op.acc.type, PendingType)
    acc = context.scalar(op.acc) if under_way else context.tile(op.acc, plan.accumulator)
    context.define(op.result, context.value(TensorCoreStartOp(a, b, acc, plan.warpgroup.name)))


@lowers(MmaWaitOp)
def _wait(context: SimtContext, op: MmaWaitOp) -> None:
    if decisions.AFTER_WORK.on(op):
        context.emit(OrderOp())
    product = context.scalar(op.product)
    context.define(op.result, context.value(TensorCoreWaitOp(product, op.pending.data)))


@lowers(MmaBeginOp)
def _begin(context: SimtContext, op: MmaBeginOp) -> None:
    layout = pending_layout(context.placements, op.result)
    context.define(op.result, context.value(TensorCoreBeginOp(context.tile(op.acc, layout))))


@lowers(MmaRetireOp)
def _retire(context: SimtContext, op: MmaRetireOp) -> None:
    context.emit(TensorCoreRetireOp(op.pending.data))


@lowers(TurnOp)
def _turn(context: SimtContext, op: TurnOp) -> None:
    context.emit(target.TurnOp(op.step.data))
