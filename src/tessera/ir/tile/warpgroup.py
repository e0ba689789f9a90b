"""Products that run while others compute (Hopper's warpgroup instructions): started, and waited for later."""

from __future__ import annotations

from xdsl.dialects.builtin import IntAttr, StringAttr
from xdsl.ir import Operation, ParametrizedAttribute, SSAValue, TypeAttribute
from xdsl.irdl import (
    IRDLOperation,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    param_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.utils.exceptions import VerifyException

from tessera.ir.effects import Effect, effect
from tessera.ir.formats import Int
from tessera.ir.tile.mma import verify_product
from tessera.ir.tile.types import SharedType, TileType


@irdl_attr_definition
class PendingType(ParametrizedAttribute, TypeAttribute):
    """The accumulators of a product under way: a tile that may not be read before `mma_wait`."""

    name = "tessera_tile.pending"
    tile: TileType = param_def()


@irdl_op_definition
class MmaStartOp(IRDLOperation):
    """Starts `acc + a @ b`; the accumulators exist after the `mma_wait` that follows in the same block.

    Until then the product may read its operands at any time: shared buffers must stay as they are.
    """

    name = "tessera_tile.mma_start"
    a = operand_def(TileType | SharedType)
    b = operand_def(SharedType)
    acc = operand_def(TileType)
    compute = prop_def(StringAttr)
    result = result_def(PendingType)
    traits = traits_def(*effect(Effect.STATE))
    assembly_format = (
        "$a `,` $b `,` $acc `compute` $compute attr-dict "
        "`:` type($a) `,` type($b) `,` type($acc) `->` type($result)"
    )

    def __init__(self, a: SSAValue, b: SSAValue, acc: SSAValue, compute: str):
        type_ = acc.type
        assert isinstance(type_, TileType)
        super().__init__(
            operands=[a, b, acc],
            properties={"compute": StringAttr(compute)},
            result_types=[PendingType(type_)],
        )

    def verify_(self) -> None:
        """Check shapes, the accumulator's type, and that the product is waited for exactly once."""
        verify_product(self.a, self.b, self.acc, self.compute.data)
        if self.result.type.tile != self.acc.type:
            raise VerifyException("mma_start gives the accumulator's type, pending")
        waits = [use.operation for use in self.result.uses]
        if len(waits) != 1 or not isinstance(waits[0], MmaWaitOp) or waits[0].parent is not self.parent:
            raise VerifyException("a product is waited for exactly once, in the block that starts it")


@irdl_op_definition
class MmaWaitOp(IRDLOperation):
    """Waits until at most `pending` of the newest products are under way; gives the accumulators of an older one."""

    name = "tessera_tile.mma_wait"
    product = operand_def(PendingType)
    pending = prop_def(IntAttr)
    result = result_def(TileType)
    traits = traits_def(*effect(Effect.STATE))
    custom_directives = (Int,)
    assembly_format = (
        "$product `pending` custom<Int>($pending) attr-dict `:` type($product) `->` type($result)"
    )

    def __init__(self, product: SSAValue, pending: int = 0):
        type_ = product.type
        assert isinstance(type_, PendingType)
        super().__init__(
            operands=[product], properties={"pending": IntAttr(pending)}, result_types=[type_.tile]
        )

    @property
    def start(self) -> MmaStartOp:
        """The op that started the product."""
        assert isinstance(self.product.owner, MmaStartOp)
        return self.product.owner

    def verify_(self) -> None:
        """Check that the product has ended once no more than `pending` newer ones are under way."""
        start = self.product.owner
        if not isinstance(start, MmaStartOp) or start.parent is not self.parent:
            raise VerifyException("mma_wait waits for a product that its own block starts")
        if self.result.type != start.result.type.tile:
            raise VerifyException("mma_wait gives the accumulator's type")
        if not 0 <= self.pending.data <= _started_between(start, self):
            raise VerifyException(
                f"with {self.pending.data} products pending, the one waited for may still be under way"
            )


@irdl_op_definition
class TurnOp(IRDLOperation):
    """One step of two consumer warpgroups that start products in turn.

    `init`, before the roles, lets the first warpgroup take the first turn; `take` waits for one's turn; `pass` gives
    the turn to the other warpgroup. Both take as many turns.
    """

    name = "tessera_tile.turn"
    step = prop_def(StringAttr)
    traits = traits_def(*effect(Effect.STATE))
    assembly_format = "$step attr-dict"

    def __init__(self, step: str):
        super().__init__(properties={"step": StringAttr(step)})

    def verify_(self) -> None:
        """Check the step's name."""
        if self.step.data not in ("init", "take", "pass"):
            raise VerifyException(f'the step of a turn is "init", "take" or "pass", got "{self.step.data}"')


def _started_between(start: Operation, wait: Operation) -> int:
    """Return how many products start after `start` and before `wait`; -1 when `wait` does not follow."""
    count, op = 0, start.next_op
    while op is not None and op is not wait:
        count += isinstance(op, MmaStartOp)
        op = op.next_op
    return count if op is wait else -1
