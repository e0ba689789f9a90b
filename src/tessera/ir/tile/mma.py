"""Matrix multiply-accumulate."""

from __future__ import annotations

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import operand_def, prop_def, result_def, traits_def
from xdsl.utils.exceptions import VerifyException

from tessera.data import dataclass
from tessera.ir.definitions import TesseraOp, op_definition
from tessera.ir.effects import Effect, HasEffect, declared
from tessera.ir.tile.structure import profile_of
from tessera.ir.tile.types import SharedType, TileType, describe, element_of, shape_of
from tessera.ir.types import dtype_of


@dataclass(frozen=True)
class _ReadsItsBuffers(HasEffect):
    """Pure on tiles; on shared buffers it reads what others write."""

    def of(self, op: Operation) -> tuple[Effect, bool]:
        """Return the effect of this very op, and whether it only reads."""
        shared = any(isinstance(operand.type, SharedType) for operand in op.operands)
        return (Effect.STATE, True) if shared else (Effect.PURE, False)


@op_definition
class MmaOp(TesseraOp):
    """`acc + a @ b` for `a` of `(M, K)`, `b` of `(K, N)` and `acc` of `(M, N)`.

    A batch of products has `acc` of `(B, M, N)`; `a` and `b` have a first dimension of size B or 1, or none.
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
        "$a `,` $b `,` $acc `compute` $compute attr-dict `:` type($a) `,` type($b) `,` type($acc) `->` type($result)"
    )

    def __init__(self, a: SSAValue, b: SSAValue, acc: SSAValue, compute: str):
        super().__init__(operands=[a, b, acc], properties={"compute": StringAttr(compute)}, result_types=[acc.type])

    @property
    def sums_in_order(self) -> bool:
        """Whether the kernel's profile gives the order of the sum: `strict`, of floats."""
        return dtype_of(element_of(self.acc.type)).is_float and profile_of(self) == "strict"

    def verify_(self) -> None:
        """Check shapes and that the accumulator's type stays."""
        verify_product(self.a, self.b, self.acc.type, self.compute.data)
        if self.result.type != self.acc.type:
            raise VerifyException("mma gives the accumulator's type")


def verify_product(a: SSAValue, b: SSAValue, acc: Attribute, compute: str) -> None:
    """Check the operands of `acc + a @ b`."""
    left, right, total = shape_of(a.type), shape_of(b.type), shape_of(acc)
    fits = len(left) in (2, 3) and len(right) in (2, 3) and left[-1] == right[-2]
    fits = fits and len({*left[:-2], *right[:-2]} - {1}) < 2
    if not fits or total != (*batch_of(left, right), left[-2], right[-1]):
        raise VerifyException(f"mma of {describe(a.type)} and {describe(b.type)} into {describe(acc)}")
    if element_of(a.type) != element_of(b.type) and compute != "fp8":
        raise VerifyException("mma operands have one dtype")


def batch_of(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    """Return the batch of a product's result: `(B,)`, or nothing for a product of matrices; a batch of 1 repeats.

    Args:
        left: shape of the left operand.
        right: shape of the right operand.
    """
    sizes = [*left[:-2], *right[:-2]]
    return (next((size for size in sizes if size != 1), 1),) if sizes else ()
