"""merge-casts: skips the middle of two casts when it holds every value of the source.

    %w = tessera_tile.cast %x : bf16 -> f32
    %y = tessera_tile.cast %w : f32 -> bf16
  becomes %x, and
    %w = tessera_tile.cast %x : bf16 -> f32
    %y = tessera_tile.cast %w : f32 -> f64
  becomes
    %y = tessera_tile.cast %x : bf16 -> f64

Narrowing integers twice is narrowing them once, since they wrap. Integers that become integers by way of floats are
clamped, not wrapped: there the last type must hold every value of the source, too. Infinities that a saturating cast
clamps, on the way or at the end, stay clamped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern

from tessera.canonicalize.matching import dtype_of_value
from tessera.data import dataclass
from tessera.ir.passes import PatternPass
from tessera.ir.rewriting import matches_type
from tessera.ir.tile.elementwise import CastOp
from tessera.ir.tile.types import element_of
from tessera.numerics.dtypes import DType


def holds_all(wide: DType, narrow: DType) -> bool:
    """Return whether every value of `narrow` is a value of `wide`."""
    if narrow == wide or narrow.kind == "bool":
        return narrow == wide or wide.kind != "bool"
    if narrow.is_float:
        return wide.is_float and _float_holds(wide, narrow)
    digits = narrow.bits - (narrow.kind == "int")
    if wide.is_float:
        return digits <= wide.mantissa + 1 and 2.0**digits <= _finfo(wide).max
    if wide.kind == "uint":
        return narrow.kind == "uint" and narrow.bits <= wide.bits
    return wide.kind == "int" and digits < wide.bits


def _float_holds(wide: DType, narrow: DType) -> bool:
    w, n = _finfo(wide), _finfo(narrow)
    return (
        wide.mantissa >= narrow.mantissa
        and float(w.max) >= float(n.max)
        and float(w.smallest_subnormal) <= float(n.smallest_subnormal)
    )


def _finfo(dtype: DType) -> Any:
    finfo: Any = ml_dtypes.finfo  # its stub leaves the narrow types out
    return finfo(dtype.numpy())


def _wraps_once(source: DType, middle: DType, target: DType) -> bool:
    return source.is_int and middle.is_int and target.is_int and target.bits <= middle.bits <= source.bits


def skips(source: DType, middle: DType, target: DType, saturates: bool) -> bool:
    """Return whether a cast by way of `middle` is the cast itself; `saturates` says whether the first one clamps."""
    if _wraps_once(source, middle, target):
        return True
    if not holds_all(middle, source) or (saturates and source.is_float):
        return False
    clamps = source.is_int and middle.is_float and target.is_int
    return not clamps or holds_all(target, source)


class _CastOfCast(RewritePattern):
    """`cast(cast(x))` becomes `cast(x)`, or `x` when the type is the same again."""

    @matches_type
    def match_and_rewrite(self, op: CastOp, rewriter: PatternRewriter, /) -> None:
        inner = op.source.owner
        if not isinstance(inner, CastOp):
            return
        source, middle, target = (dtype_of_value(v) for v in (inner.source, op.source, op.result))
        if not skips(source, middle, target, inner.saturate is not None):
            return
        if inner.source.type == op.result.type:
            if op.saturate is None:  # else infinities are clamped, which no cast to the same type does
                rewriter.replace(op, [], [inner.source])
        else:
            merged = CastOp(inner.source, element_of(op.result.type), op.saturate is not None)
            rewriter.replace(op, merged)


class _SameType(RewritePattern):
    """A cast to the type that the value has becomes the value."""

    @matches_type
    def match_and_rewrite(self, op: CastOp, rewriter: PatternRewriter, /) -> None:
        if op.source.type == op.result.type and op.saturate is None:
            rewriter.replace(op, [], [op.source])


@dataclass(frozen=True)
class MergeCastsPass(PatternPass):
    """Skips the middle of two casts when it holds every value of the source."""

    name = "merge-casts"

    def patterns(self) -> Sequence[RewritePattern]:
        """Return the patterns."""
        return [_SameType(), _CastOfCast()]
