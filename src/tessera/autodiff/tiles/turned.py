"""Computes transposes in place of what they are of.

A gradient of the right operand of a product is `aᵀ @ d`. Where `a` is computed, as the weights of an attention are, its
elements lie in registers by rows, and matrix units take left operands by rows of their own: what is transposed would go
through shared memory. `(q @ kᵀ)ᵀ` is `k @ qᵀ` as well, and functions of elements are those of the transposed ones. So a
loop whose computed values are needed transposed alone computes them so.
"""

from __future__ import annotations

from xdsl.dialects.scf import ForOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.rewriter import InsertPoint

from tessera.canonicalize.dead_code import remove_dead
from tessera.ir.inserter import Inserter
from tessera.ir.tile.elementwise import CastOp, ElementwiseOp, SplatOp
from tessera.ir.tile.memory import LoadOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp, TransposeOp
from tessera.ir.tile.structure import GridOp
from tessera.ir.tile.types import TileType, element_of, shape_of
from tessera.ir.walking import ops_in

SWAP = (1, 0)


def turned(grid: GridOp) -> GridOp:
    """Return a grid, or one in its place whose loops compute transposes, if that has no more products."""
    if not any(map(_is_computed, ops_in(grid))):
        return grid
    new = grid.clone()
    for block in [region.block for op in ops_in(new) if isinstance(op, ForOp) for region in op.regions]:
        _turn(block)
    remove_dead(new.body.block)
    return new if _products(new) <= _products(grid) else grid


def _products(grid: GridOp) -> int:
    return sum(isinstance(op, MmaOp) for op in ops_in(grid))


def _is_computed(op: Operation) -> bool:
    """Return whether an op transposes what is no load, whose transpose costs nothing."""
    return isinstance(op, TransposeOp) and tuple(op.permutation) == SWAP and not isinstance(op.source.owner, LoadOp)


def _turn(block: Block) -> None:
    known: dict[SSAValue, SSAValue] = {}
    for op in list(block.ops):
        if isinstance(op, TransposeOp) and _is_computed(op):
            op.result.replace_all_uses_with(_transposed(op.source, block, op, known))


def _transposed(value: SSAValue, block: Block, before: Operation, known: dict[SSAValue, SSAValue]) -> SSAValue:
    """Return the transpose of a matrix, computed before an op of a block."""
    if value not in known:
        known[value] = _made(value, block, before, known)
    return known[value]


def _made(value: SSAValue, block: Block, before: Operation, known: dict[SSAValue, SSAValue]) -> SSAValue:
    insert, op = Inserter(InsertPoint.before(before), before), value.owner
    shape = shape_of(value.type)[::-1]

    def turn(one: SSAValue) -> SSAValue:
        return _transposed(one, block, before, known) if len(shape_of(one.type)) == 2 else one

    if isinstance(op, TransposeOp):
        return op.source
    if isinstance(op, SplatOp):
        return insert.value(SplatOp(op.value, shape))
    if isinstance(op, Operation) and op.parent is block:
        match op:
            case MmaOp():
                return insert.value(MmaOp(turn(op.b), turn(op.a), turn(op.acc), op.compute.data))
            case ElementwiseOp() | CastOp():
                given = [turn(operand) for operand in op.operands]
                return insert.value(
                    type(op).create(
                        operands=given,
                        result_types=[TileType.of(shape, element_of(value.type))],
                        properties=dict(op.properties),
                        attributes=dict(op.attributes),
                    )
                )
            case BroadcastOp():
                return insert.value(BroadcastOp(turn(op.source), shape))
            case ReshapeOp() if 1 in shape:
                return insert.value(ReshapeOp(op.source, shape))
            case _:
                pass
    return insert.value(TransposeOp(value, SWAP))
