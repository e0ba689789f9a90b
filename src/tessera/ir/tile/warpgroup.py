"""Products that run while others compute (Hopper's warpgroup instructions): started, and waited for later."""

from __future__ import annotations

from xdsl.dialects import scf
from xdsl.dialects.builtin import IntAttr, StringAttr
from xdsl.ir import Block, Operation, ParametrizedAttribute, SSAValue, TypeAttribute
from xdsl.irdl import (
    irdl_attr_definition,
    operand_def,
    param_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.utils.exceptions import VerifyException

from tessera.ir.definitions import TesseraOp, op_definition
from tessera.ir.effects import Effect, effect
from tessera.ir.formats import Int
from tessera.ir.tile.mma import verify_product
from tessera.ir.tile.types import SharedType, TileType


@irdl_attr_definition
class PendingType(ParametrizedAttribute, TypeAttribute):
    """The accumulators of a product under way: a tile that may not be read before `mma_wait`."""

    name = "tessera_tile.pending"
    tile: TileType = param_def()


@op_definition
class MmaBeginOp(TesseraOp):
    """Hands a tile over as the accumulators of products under way: a sum that products then add to one by one."""

    name = "tessera_tile.mma_begin"
    acc = operand_def(TileType)
    result = result_def(PendingType)
    traits = traits_def(*effect(Effect.STATE))
    assembly_format = "$acc attr-dict `:` type($acc) `->` type($result)"

    def __init__(self, acc: SSAValue):
        type_ = acc.type
        assert isinstance(type_, TileType)
        super().__init__(operands=[acc], result_types=[PendingType(type_)])

    def verify_(self) -> None:
        """Check the type, and that one op goes on with the accumulators."""
        if self.result.type.tile != self.acc.type:
            raise VerifyException("mma_begin gives the accumulator's type, pending")
        _verify_used_once(self.result)


@op_definition
class MmaStartOp(TesseraOp):
    """Starts `acc + a @ b`; the accumulators exist after an `mma_wait`.

    Until then, or an `mma_retire` that covers it, the product may read its operands at any time: shared buffers must
    stay as they are. `acc` may be the accumulators of a product under way, which ends first; a loop may carry them.
    """

    name = "tessera_tile.mma_start"
    a = operand_def(TileType | SharedType)
    b = operand_def(SharedType)
    acc = operand_def(TileType | PendingType)
    compute = prop_def(StringAttr)
    result = result_def(PendingType)
    traits = traits_def(*effect(Effect.STATE))
    assembly_format = (
        "$a `,` $b `,` $acc `compute` $compute attr-dict `:` type($a) `,` type($b) `,` type($acc) `->` type($result)"
    )

    def __init__(self, a: SSAValue, b: SSAValue, acc: SSAValue, compute: str):
        super().__init__(
            operands=[a, b, acc],
            properties={"compute": StringAttr(compute)},
            result_types=[PendingType(sums_type(acc))],
        )

    def verify_(self) -> None:
        """Check shapes, the accumulator's type, and that one op of the same block waits or goes on."""
        verify_product(self.a, self.b, sums_type(self.acc), self.compute.data)
        if self.result.type.tile != sums_type(self.acc):
            raise VerifyException("mma_start gives the accumulator's type, pending")
        _verify_used_once(self.result)


@op_definition
class MmaRetireOp(TesseraOp):
    """Waits until at most `pending` of the newest products are under way: the older ones have read their operands."""

    name = "tessera_tile.mma_retire"
    pending = prop_def(IntAttr)
    traits = traits_def(*effect(Effect.STATE))
    custom_directives = (Int,)
    assembly_format = "`pending` custom<Int>($pending) attr-dict"

    def __init__(self, pending: int):
        super().__init__(properties={"pending": IntAttr(pending)})

    def verify_(self) -> None:
        """Check that the number is not negative."""
        if self.pending.data < 0:
            raise VerifyException("the number of pending products is not negative")


@op_definition
class MmaWaitOp(TesseraOp):
    """Waits until at most `pending` of the newest products are under way; gives the accumulators of an older one."""

    name = "tessera_tile.mma_wait"
    product = operand_def(PendingType)
    pending = prop_def(IntAttr)
    result = result_def(TileType)
    traits = traits_def(*effect(Effect.STATE))
    custom_directives = (Int,)
    assembly_format = "$product `pending` custom<Int>($pending) attr-dict `:` type($product) `->` type($result)"

    def __init__(self, product: SSAValue, pending: int = 0):
        type_ = product.type
        assert isinstance(type_, PendingType)
        super().__init__(operands=[product], properties={"pending": IntAttr(pending)}, result_types=[type_.tile])

    @property
    def start(self) -> MmaStartOp:
        """The op that started the product."""
        return start_of(self.product)

    def verify_(self) -> None:
        """Check that the product has ended once no more than `pending` newer ones are under way."""
        start = self.product.owner
        if self.result.type != sums_type(self.product):
            raise VerifyException("mma_wait gives the accumulator's type")
        if isinstance(start, scf.ForOp) and start.parent is self.parent:
            if self.pending.data:
                raise VerifyException("no product may be pending after a wait for those of a loop")
            return
        if not isinstance(start, MmaStartOp) or start.parent is not self.parent:
            raise VerifyException("mma_wait waits for a product that its own block starts, or a loop in it")
        if not 0 <= self.pending.data <= _started_between(start, self):
            raise VerifyException(
                f"with {self.pending.data} products pending, the one waited for may still be under way"
            )


@op_definition
class TurnOp(TesseraOp):
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


def sums_type(acc: SSAValue) -> TileType:
    """Return the type of accumulators, whether they are a tile or under way."""
    type_ = acc.type
    if isinstance(type_, PendingType):
        return type_.tile
    assert isinstance(type_, TileType)
    return type_


def start_of(product: SSAValue) -> MmaStartOp:
    """Return the op that starts a product under way, inside the loop that carries it where one does."""
    owner = product.owner
    loop = owner.parent_op() if isinstance(owner, Block) else owner
    if isinstance(loop, scf.ForOp):
        carried = loop.results if loop is owner else loop.body.block.args[1:]
        end = loop.body.block.last_op
        assert end is not None
        return start_of(next(v for v, at in zip(end.operands, carried, strict=True) if at is product))
    assert isinstance(owner, MmaStartOp)
    return owner


def _verify_used_once(product: SSAValue) -> None:
    """Check that one op of the same block waits for accumulators under way, adds to them or hands them on."""
    users = [use.operation for use in product.uses]
    kinds = (MmaWaitOp, MmaStartOp, scf.ForOp, scf.YieldOp)
    parent = product.owner.parent
    if len(users) != 1 or not isinstance(users[0], kinds) or users[0].parent is not parent:
        raise VerifyException("a product is waited for exactly once, or added to, in the block that starts it")


def _started_between(start: Operation, wait: Operation) -> int:
    """Return how many products start after `start` and before `wait`; -1 when `wait` does not follow."""
    count, op = 0, start.next_op
    while op is not None and op is not wait:
        count += isinstance(op, MmaStartOp)
        op = op.next_op
    return count if op is wait else -1
