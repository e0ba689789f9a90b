"""SIMT lowering of device print and assert."""

from __future__ import annotations

from tessera.ir.target import debug as target
from tessera.ir.target.arithmetic import ElementwiseOp
from tessera.ir.tile.debug import AssemblyOp, AssertOp, PrintOp
from tessera.ir.types import i1
from tessera.lower.simt.context import SimtContext, is_tile, tile_shape
from tessera.lower.simt.rules import lowers


@lowers(PrintOp)
def _print(context: SimtContext, op: PrintOp) -> None:
    first = next(filter(is_tile, op.args), None)
    if first is None:
        context.emit(target.PrintOp(op.format.data, list(map(context.scalar, op.args))))
        return
    layout = context.layout_of(first)
    args = [context.tile(value, layout) if is_tile(value) else context.scalar(value) for value in op.args]
    context.emit(target.PrintOp(op.format.data, args, context.inside(tile_shape(first), layout)))


@lowers(AssemblyOp)
def _assembly(context: SimtContext, op: AssemblyOp) -> None:
    context.emit(target.AssemblyOp(op.fn.data, list(map(context.scalar, op.args))))


@lowers(AssertOp)
def _assert(context: SimtContext, op: AssertOp) -> None:
    if not is_tile(op.condition):
        context.emit(target.AssertOp(context.scalar(op.condition), op.message.data))
        return
    layout = context.layout_of(op.condition)
    condition = context.tile(op.condition, layout)
    inside = context.inside(tile_shape(op.condition), layout)
    if inside is not None:
        true = context.splat(context.scalars.constant(1, i1), layout)
        outside = context.value(ElementwiseOp("xor", [inside, true]))
        condition = context.value(ElementwiseOp("or", [condition, outside]))
    context.emit(target.AssertOp(condition, op.message.data))
