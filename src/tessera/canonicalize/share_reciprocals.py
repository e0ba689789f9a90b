"""share-reciprocals: under `fast`, divides by what many elements share by multiplying with its reciprocal.

    %q = tessera_tile.elementwise "div"(%x, broadcast %total)
  becomes
    %r = tessera_tile.elementwise "div"(splat 1, %total)
    %q = tessera_tile.elementwise "mul"(%x, broadcast %r)

A quotient then has an error of 1.5 ULP instead of the division's, 4 ULP where the reciprocal is subnormal, and divisors
whose reciprocal overflows count as zero, as stated in docs/numerics.md. Narrow floats keep their division: its result
is rounded once to the narrow type, a product's operands would be rounded before. So do kernels that divide exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.ir import Operation, SSAValue
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern

from tessera.canonicalize.matching import constant_like, dtype_of_value
from tessera.data import dataclass
from tessera.ir.passes import PatternPass
from tessera.ir.rewriting import matches_type
from tessera.ir.tile.elementwise import ElementwiseOp, SplatOp
from tessera.ir.tile.shape import BroadcastOp
from tessera.ir.tile.structure import divides_exactly, profile_of
from tessera.ir.tile.types import TileType, shape_of


def _shared(value: SSAValue) -> SSAValue | None:
    """Return what several elements of a tile share: a smaller tile, or a scalar."""
    owner = value.owner
    if isinstance(owner, SplatOp):
        return owner.value if prod(shape_of(value.type)) > 1 else None
    if isinstance(owner, BroadcastOp) and prod(shape_of(owner.source.type)) < prod(shape_of(value.type)):
        return owner.source
    return None


class _Quotient(RewritePattern):
    """`x / broadcast(y)` becomes `x * broadcast(1 / y)`."""

    @matches_type
    def match_and_rewrite(self, op: ElementwiseOp, rewriter: PatternRewriter, /) -> None:
        if op.fn.data != "div" or not isinstance(op.result.type, TileType):
            return
        if profile_of(op) != "fast" or divides_exactly(op):
            return
        divisor = _shared(op.args[1])
        if divisor is None or dtype_of_value(divisor).bits < 32:
            return
        ones = constant_like(1.0, divisor.type)
        reciprocal = ElementwiseOp("div", [ones[-1].results[0], divisor])
        spread: Operation = (BroadcastOp if isinstance(divisor.type, TileType) else SplatOp)(
            reciprocal.result, shape_of(op.result.type)
        )
        product = ElementwiseOp("mul", [op.args[0], spread.results[0]])
        rewriter.replace(op, [*ones, reciprocal, spread, product])


@dataclass(frozen=True)
class ShareReciprocalsPass(PatternPass):
    """Divides by what many elements share by multiplying with its reciprocal."""

    name = "share-reciprocals"

    def patterns(self) -> Sequence[RewritePattern]:
        """Return the patterns."""
        return [_Quotient()]
