"""Products of TIR-T that run while other ops do: started, and waited for later.

Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions": `wgmma.fence`, `wgmma.commit_group`,
`wgmma.wait_group`.
"""

from __future__ import annotations

from xdsl.dialects import scf
from xdsl.dialects.builtin import IntAttr, StringAttr
from xdsl.ir import ParametrizedAttribute, SSAValue, TypeAttribute
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
from tessera.ir.target.types import BufferType, FragmentType


@irdl_attr_definition
class PendingType(ParametrizedAttribute, TypeAttribute):
    """The accumulators of a product under way: registers that may not be touched before `tensor_core_wait`."""

    name = "tessera_target.pending"
    fragment: FragmentType = param_def()


@op_definition
class TensorCoreBeginOp(TesseraOp):
    """Hands a fragment over as the accumulators of products under way."""

    name = "tessera_target.tensor_core_begin"
    acc = operand_def(FragmentType)
    result = result_def(PendingType)
    traits = traits_def(*effect(Effect.STATE))
    assembly_format = "$acc attr-dict `:` type($acc) `->` type($result)"

    def __init__(self, acc: SSAValue):
        type_ = acc.type
        assert isinstance(type_, FragmentType)
        super().__init__(operands=[acc], result_types=[PendingType(type_)])


@op_definition
class TensorCoreStartOp(TesseraOp):
    """Starts `acc + a @ b` by a warpgroup instruction, as a group of its own; operands as `tensor_core` has them.

    `acc` may be the accumulators of a product under way.
    """

    name = "tessera_target.tensor_core_start"
    a = operand_def(FragmentType | BufferType)
    b = operand_def(BufferType)
    acc = operand_def(FragmentType | PendingType)
    instruction = prop_def(StringAttr)
    result = result_def(PendingType)
    traits = traits_def(*effect(Effect.STATE))
    assembly_format = (
        "$instruction $a `,` $b `,` $acc attr-dict `:` type($a) `,` type($b) `,` type($acc) `->` type($result)"
    )

    def __init__(self, a: SSAValue, b: SSAValue, acc: SSAValue, instruction: str):
        super().__init__(
            operands=[a, b, acc],
            properties={"instruction": StringAttr(instruction)},
            result_types=[PendingType(sums_type(acc))],
        )

    def verify_(self) -> None:
        """Check that the accumulators keep their layout."""
        if self.result.type.fragment != sums_type(self.acc):
            raise VerifyException("tensor_core_start gives the accumulators' type, pending")


def sums_type(acc: SSAValue) -> FragmentType:
    """Return the type of accumulators, whether they are under way or not."""
    type_ = acc.type
    if isinstance(type_, PendingType):
        return type_.fragment
    assert isinstance(type_, FragmentType)
    return type_


@op_definition
class TensorCoreRetireOp(TesseraOp):
    """Waits until at most `pending` of the newest products are under way; the older ones read no operands any more."""

    name = "tessera_target.tensor_core_retire"
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
class OrderOp(TesseraOp):
    """What stands before it is issued before what follows, also where neither needs the other.

    Assemblers would otherwise move a wait for products up to where they start, and arithmetic that is to run meanwhile
    behind it.
    """

    name = "tessera_target.order"
    traits = traits_def(*effect(Effect.STATE))
    assembly_format = "attr-dict"

    def __init__(self) -> None:
        super().__init__()


@op_definition
class TensorCoreWaitOp(TesseraOp):
    """Waits until at most `pending` of the newest products are under way; gives the accumulators of an older one.

    A fragment that the product reads as `a` is in use up to here.
    """

    name = "tessera_target.tensor_core_wait"
    product = operand_def(PendingType)
    pending = prop_def(IntAttr)
    result = result_def(FragmentType)
    traits = traits_def(*effect(Effect.STATE))
    custom_directives = (Int,)
    assembly_format = "$product `pending` custom<Int>($pending) attr-dict `:` type($product) `->` type($result)"

    def __init__(self, product: SSAValue, pending: int):
        type_ = product.type
        assert isinstance(type_, PendingType)
        super().__init__(operands=[product], properties={"pending": IntAttr(pending)}, result_types=[type_.fragment])

    def verify_(self) -> None:
        """Check that it is known which product is waited for."""
        start = self.product.owner
        if not isinstance(start, TensorCoreStartOp | scf.ForOp) or start.parent is not self.parent:
            raise VerifyException("tensor_core_wait waits for a product that its own block starts, or a loop in it")
        if self.result.type != sums_type(self.product):
            raise VerifyException("tensor_core_wait gives the accumulators' type")
        if self.pending.data < 0:
            raise VerifyException("the number of pending products is not negative")


@op_definition
class TurnOp(TesseraOp):
    """One step of two consumer warpgroups that start products in turn.

    `init`, before the roles, lets the first warpgroup take the first turn; `take` waits for one's turn; `pass` gives
    the turn to the other warpgroup. Both take as many turns.
    """

    name = "tessera_target.turn"
    step = prop_def(StringAttr)
    traits = traits_def(*effect(Effect.STATE))
    assembly_format = "$step attr-dict"

    def __init__(self, step: str):
        super().__init__(properties={"step": StringAttr(step)})

    def verify_(self) -> None:
        """Check the step's name."""
        if self.step.data not in ("init", "take", "pass"):
            raise VerifyException(f'the step of a turn is "init", "take" or "pass", got "{self.step.data}"')
