"""Makes loops of products in adjoints what matrix units are fed best with: operands loaded once, sums kept in them."""

from __future__ import annotations

from math import isfinite

from xdsl.dialects.scf import ForOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from tessera.autodiff.tiles.scales import number_of
from tessera.ir.effects import Effect, effect_of
from tessera.ir.inserter import Inserter
from tessera.ir.tile.elementwise import CastOp, ConstantOp, ElementwiseOp, SplatOp, is_zero
from tessera.ir.tile.memory import LoadOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.structure import GridOp
from tessera.ir.tile.types import element_of, shape_of
from tessera.ir.types import dtype_of
from tessera.ir.walking import ops_in
from tessera.numerics import dtypes


def hoist_loads(grid: GridOp) -> None:
    """Move loads that are the same in all iterations out of the loops of a grid, which stores behind them alone."""
    for loop in [op for op in ops_in(grid) if isinstance(op, ForOp)]:
        block, inside = loop.parent_block(), _defined(loop.body.block)
        assert block is not None, "it is in a grid"
        for op in list(loop.body.block.ops):
            is_scalar = effect_of(op) <= Effect.PURE and not any(shape_of(result.type) for result in op.results)
            movable = isinstance(op, LoadOp) or (is_scalar and op.results and not op.regions)
            if movable and not any(operand in inside for operand in op.operands):
                op.detach()
                block.insert_op_before(op, loop)
                inside -= {*op.results}


def _defined(block: Block) -> set[SSAValue]:
    return {*block.args, *(result for op in block.ops for result in op.results)}


def add_products(grid: GridOp) -> None:
    """Let products add to what they are added to, `x + (0 + a @ b)` as `x + a @ b`."""
    for op in [op for op in ops_in(grid) if isinstance(op, ElementwiseOp) and op.fn.data == "add"]:
        for product, other in (op.args, reversed(op.args)):
            made = product.owner
            if isinstance(made, MmaOp) and _is_alone(made, op):
                new = MmaOp(made.a, made.b, other, made.compute.data)
                Inserter(InsertPoint.before(op), op).add(new)
                op.result.replace_all_uses_with(new.result)
                Rewriter.erase_op(op)
                Rewriter.erase_op(made)
                break


def scale_sums(grid: GridOp) -> None:
    """Multiply sums of products by a constant factor of a computed operand behind their loop: once, not in each step.

    Only where rounding the operand has the range of f32, so that it neither overflows nor vanishes without the factor.
    """
    for loop in [op for op in ops_in(grid) if isinstance(op, ForOp)]:
        end = loop.body.block.last_op
        assert end is not None, "a loop's body ends with its yield"
        for place, argument in enumerate(loop.body.block.args[1:]):
            op = end.operands[place].owner
            if not isinstance(op, MmaOp) or op.acc is not argument or not is_zero(loop.iter_args[place]):
                continue
            alone = argument.uses.get_length() == 1 == op.result.uses.get_length()
            if alone and (factor := _factor_of(op)) is not None:
                _scale_behind(loop, place, factor)


def _factor_of(op: MmaOp) -> float | None:
    """Take a constant factor out of the left operand of a product, and return it."""
    cast = op.a.owner
    if not isinstance(cast, CastOp) or dtype_of(element_of(cast.result.type)) is not dtypes.bf16:
        return None
    product = cast.source.owner
    if not isinstance(product, ElementwiseOp) or product.fn.data != "mul":
        return None
    if op.a.uses.get_length() != 1 or product.result.uses.get_length() != 1:
        return None
    for factor, other in (product.args, reversed(product.args)):
        number = number_of(factor)
        if number is not None and isfinite(number) and number:
            cast.operands[0] = other
            Rewriter.erase_op(product)
            return number
    return None


def _scale_behind(loop: ForOp, place: int, factor: float) -> None:
    """Multiply what a loop gives at a place by a number."""
    result = loop.results[place]
    uses, insert = list(result.uses), Inserter(InsertPoint.after(loop), loop)
    number = insert.value(ConstantOp(factor, element_of(result.type)))
    scaled = insert.value(ElementwiseOp("mul", [result, insert.value(SplatOp(number, shape_of(result.type)))]))
    for use in uses:
        use.operation.operands[use.index] = scaled


def _is_alone(product: MmaOp, user: Operation) -> bool:
    """Return whether a product starts at zero and has no other use."""
    return product.parent is user.parent and is_zero(product.acc) and product.result.uses.get_length() == 1
