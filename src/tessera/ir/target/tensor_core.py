"""Matrix units of TIR-T: one op is one tile's worth of matrix instructions."""

from __future__ import annotations

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import SSAValue
from xdsl.irdl import operand_def, opt_result_def, prop_def, traits_def

from tessera.ir.definitions import TesseraOp, op_definition
from tessera.ir.effects import Effect, effect
from tessera.ir.target.types import BufferType, FragmentType


@op_definition
class TensorCoreOp(TesseraOp):
    """`acc + a @ b` by the instruction named `instruction` (a key of `target.fragments`, or `fma` for vector units).

    A warpgroup instruction (`wgmma_…`) reads B, and A unless it is a fragment, from shared memory in panels; the op is
    complete when its result exists.

    Operands are fragments in the instruction's layouts (the result is the new accumulator), or buffers (`fma` on a
    CPU, which updates the accumulator buffer in place and has no result).
    """

    name = "tessera_target.tensor_core"
    a = operand_def(FragmentType | BufferType)
    b = operand_def(FragmentType | BufferType)
    acc = operand_def(FragmentType | BufferType)
    instruction = prop_def(StringAttr)
    result = opt_result_def(FragmentType)
    traits = traits_def(*effect(Effect.STATE))
    assembly_format = (
        "$instruction $a `,` $b `,` $acc attr-dict `:` type($a) `,` type($b) `,` type($acc) (`->` type($result)^)?"
    )

    def __init__(self, a: SSAValue, b: SSAValue, acc: SSAValue, instruction: str):
        results = [acc.type] if isinstance(acc.type, FragmentType) else []
        super().__init__(
            operands=[a, b, acc],
            properties={"instruction": StringAttr(instruction)},
            result_types=[results],
        )
