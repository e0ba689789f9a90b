"""Matrix multiply-accumulate."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Operation, SSAValue
from xdsl.irdl import IRDLOperation, irdl_op_definition, operand_def, prop_def, result_def, traits_def
from xdsl.utils.exceptions import VerifyException

from tessera.ir.effects import Effect, HasEffect, declared
from tessera.ir.tile.types import SharedType, TileType, describe, element_of, shape_of


@dataclass(frozen=True)
class _ReadsItsBuffers(HasEffect):
    """Pure on tiles; on shared buffers it reads what others write."""

    def of(self, op: Operation) -> tuple[Effect, bool]:
        """Return the effect of this very op, and whether it only reads."""
        shared = any(isinstance(operand.type, SharedType) for operand in op.operands)
        return (Effect.STATE, True) if shared else (Effect.PURE, False)


@irdl_op_definition
class MmaOp(IRDLOperation):
    """`acc + a @ b` for `a` of `(M, K)`, `b` of `(K, N)` and `acc` of `(M, N)`.

    Operands are tiles or shared buffers of one dtype (fp8 formats may be mixed). `compute` is the operand
    precision: the dtype's own name, or `tf32` for f32 operands.
    """

    name = "tessera_tile.mma"
    a = operand_def(TileType | SharedType)
    b = operand_def(TileType | SharedType)
    acc = operand_def(TileType)
    compute = prop_def(StringAttr)
    result = result_def(TileType)
    traits = traits_def(*declared(_ReadsItsBuffers()))
    assembly_format = (
        "$a `,` $b `,` $acc `compute` $compute attr-dict "
        "`:` type($a) `,` type($b) `,` type($acc) `->` type($result)"
    )

    def __init__(self, a: SSAValue, b: SSAValue, acc: SSAValue, compute: str):
        super().__init__(
            operands=[a, b, acc], properties={"compute": StringAttr(compute)}, result_types=[acc.type]
        )

    def verify_(self) -> None:
        """Check shapes and that the accumulator's type stays."""
        a, b, acc = shape_of(self.a.type), shape_of(self.b.type), shape_of(self.acc.type)
        if len(a) != 2 or len(b) != 2 or a[1] != b[0] or acc != (a[0], b[1]):
            raise VerifyException(
                f"mma of {describe(self.a.type)} and {describe(self.b.type)} into {describe(self.acc.type)}"
            )
        if self.result.type != self.acc.type:
            raise VerifyException("mma gives the accumulator's type")
        if element_of(self.a.type) != element_of(self.b.type) and self.compute.data != "fp8":
            raise VerifyException("mma operands have one dtype")
