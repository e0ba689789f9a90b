"""Makes loops of products in adjoints what matrix units are fed best with: operands loaded once, sums kept in them."""

from __future__ import annotations

from xdsl.dialects.scf import ForOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from tessera.ir.effects import Effect, effect_of
from tessera.ir.inserter import Inserter
from tessera.ir.tile.elementwise import ElementwiseOp, is_zero
from tessera.ir.tile.memory import LoadOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.structure import GridOp
from tessera.ir.tile.types import shape_of
from tessera.ir.walking import ops_in


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


def _is_alone(product: MmaOp, user: Operation) -> bool:
    """Return whether a product starts at zero and has no other use."""
    return product.parent is user.parent and is_zero(product.acc) and product.result.uses.get_length() == 1
