"""fold-constants: evaluates what is known at compile time.

    %a = tessera_tile.constant 3 : index
    %b = tessera_tile.constant 4 : index
    %c = tessera_tile.elementwise "add"(%a, %b) : (index, index) -> index
    %m = tessera_tile.dim %x[0] : !tessera_tile.tensor<128xf32>
  becomes
    %c = tessera_tile.constant 7 : index
    %m = tessera_tile.constant 128 : index

Integer constants of a chain of additions or multiplications meet: `(x + 3) + 4` becomes `x + 7`. The numbers
are computed by the interpreter, so folding rounds exactly as running does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdsl.ir import Attribute, SSAValue
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern

from tessera.canonicalize.matching import constant_like, dtype_of_value, known
from tessera.data import dataclass
from tessera.interp.elementwise import apply, scalar
from tessera.ir.passes import PatternPass
from tessera.ir.rewriting import matches_type
from tessera.ir.tile.elementwise import CastOp, ConstantOp, ElementwiseOp, constant_value
from tessera.ir.tile.structure import DimOp, profile_of, static_size
from tessera.ir.tile.types import TensorType, element_of
from tessera.ir.types import NarrowFloatType, i1
from tessera.numerics.conversions import convert


def _holds(type_: Attribute) -> bool:
    """Return whether a constant of the scalar `type_` can be written."""
    return not isinstance(type_, NarrowFloatType)


def _python(value: Any) -> int | float:
    return value.item() if hasattr(value, "item") and value.dtype.kind in "iufb" else float(value)


class _Evaluate(RewritePattern):
    """`f(constants)` becomes a constant."""

    @matches_type
    def match_and_rewrite(self, op: ElementwiseOp, rewriter: PatternRewriter, /) -> None:
        numbers = [constant_value(arg) for arg in op.args]
        if any(number is None for number in numbers) or not _holds(op.result.type):
            return
        fn, dtype = op.fn.data, dtype_of_value(op.args[-1])
        kinds = [dtype_of_value(arg) for arg in op.args]
        args = tuple(scalar(number, kind) for number, kind in zip(numbers, kinds, strict=True) if number is not None)
        rewriter.replace(op, ConstantOp(_python(apply(fn, args, dtype, profile_of(op))), op.result.type))


class _SelectKnown(RewritePattern):
    """`select(true, a, b)` becomes `a`."""

    @matches_type
    def match_and_rewrite(self, op: ElementwiseOp, rewriter: PatternRewriter, /) -> None:
        if op.fn.data == "select" and (condition := known(op.args[0])) is not None:
            rewriter.replace(op, [], [op.args[1] if condition else op.args[2]])


class _Cast(RewritePattern):
    """A cast of a constant becomes a constant."""

    @matches_type
    def match_and_rewrite(self, op: CastOp, rewriter: PatternRewriter, /) -> None:
        number = constant_value(op.source)
        if number is None or not _holds(op.result.type):
            return
        source = dtype_of_value(op.source)
        result = convert(scalar(number, source), source, dtype_of_value(op.result), op.saturate is not None)
        rewriter.replace(op, ConstantOp(_python(result), op.result.type))


class _Dim(RewritePattern):
    """The size of a static dimension becomes a constant."""

    @matches_type
    def match_and_rewrite(self, op: DimOp, rewriter: PatternRewriter, /) -> None:
        assert isinstance(op.tensor.type, TensorType)
        size = static_size(op.tensor.type, op.axis.data)
        if size is not None:
            rewriter.replace(op, ConstantOp(size, op.result.type))


def _split(value: SSAValue, fn: str) -> tuple[SSAValue, int] | None:
    """Return `x` and `c` of `fn(x, c)`, whichever side the constant is on."""
    op = value.owner
    if not isinstance(op, ElementwiseOp) or op.fn.data != fn:
        return None
    for rest, constant in ((op.args[0], op.args[1]), (op.args[1], op.args[0])):
        number = known(constant)
        if isinstance(number, int) and known(rest) is None:
            return rest, number
    return None


class _Reassociate(RewritePattern):
    """`(x + c) + d` becomes `x + (c + d)`, and likewise for `*`, on integers, which wrap."""

    @matches_type
    def match_and_rewrite(self, op: ElementwiseOp, rewriter: PatternRewriter, /) -> None:
        fn, dtype = op.fn.data, dtype_of_value(op.result)
        if fn not in ("add", "mul") or not dtype.is_int or (outer := _split(op.result, fn)) is None:
            return
        inner = _split(outer[0], fn)
        if inner is None or element_of(op.result.type) == i1:
            return
        total = apply(fn, (scalar(inner[1], dtype), scalar(outer[1], dtype)), dtype)
        constants = constant_like(_python(total), op.result.type)
        rewriter.replace(op, [*constants, ElementwiseOp(fn, [inner[0], constants[-1].results[0]])])


@dataclass(frozen=True)
class FoldConstantsPass(PatternPass):
    """Evaluates what is known at compile time."""

    name = "fold-constants"

    def patterns(self) -> Sequence[RewritePattern]:
        """Return the patterns."""
        return [_Evaluate(), _SelectKnown(), _Cast(), _Dim(), _Reassociate()]
