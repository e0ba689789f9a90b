"""fold-scales: under `fast`, moves constant factors of tiles to where they cost one operation per row, or none.

    %y = tessera_tile.elementwise "mul"(%x, splat 0.125)
    %z = tessera_tile.elementwise "select"(%visible, %y, splat -inf)
    %top = tessera_tile.reduce "max" %z axis 1
    %d = tessera_tile.elementwise "sub"(%z, broadcast %m)
    %p = tessera_tile.elementwise "exp"(%d)
  becomes
    %z = tessera_tile.elementwise "select"(%visible, %x, splat -inf)
    %r = tessera_tile.reduce "max" %z axis 1
    %top = tessera_tile.elementwise "mul"(%r, splat 0.125)
    %s = tessera_tile.elementwise "mul"(%z, splat 0.18033688)
    %d = tessera_tile.elementwise "sub"(%s, broadcast (%m * 1.442695))
    %p = tessera_tile.elementwise "exp2"(%d)

For targets whose exponential is of base 2: a product and a difference are one fused operation, and exp2 is exp without
its multiplication by log2(e). Nothing changes unless every use of a product ends in a maximum, a minimum or such an
exponential, so that no product is left but theirs.

Factors are positive. Rounding then keeps the order of products, so that a factor passes selections, maxima and minima
exactly, infinities and NaN too. The argument of an exponential gets an error of 1.5 ULP of `|x * c| + |m|`, as
docs/numerics.md states; fusing `x * c` with the subtraction, which `fast` allows everywhere, has one of the same kind.
A difference of which no side is a product keeps its exponential: it may be exact, as in a softmax of large numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any, TypeGuard

import numpy as np
from xdsl.ir import Operation, SSAValue
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern
from xdsl.rewriter import InsertPoint

from tessera.canonicalize.dead_code import is_dead
from tessera.canonicalize.matching import constant_like, dtype_of_value, known, repeated
from tessera.canonicalize.round_products import MASK, is_moderate
from tessera.data import dataclass
from tessera.ir.passes import PatternPass
from tessera.ir.rewriting import matches_type
from tessera.ir.tile.elementwise import ElementwiseOp, SplatOp
from tessera.ir.tile.reduce import ReduceOp
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp, TransposeOp
from tessera.ir.tile.structure import profile_of
from tessera.ir.tile.types import TileType, shape_of
from tessera.numerics import dtypes
from tessera.numerics.elementary.exponential import LOG2_E

_LEAST, _MOST = 2.0**-100, 2.0**100
"""Factors between these have products with log2(e) that keep all their bits."""
_PASSED = ("select", "maximum", "minimum", "abs")
_TERMS = ("sub", "add")


def _factor(value: SSAValue) -> tuple[SSAValue, float] | None:
    """Return `x` and `c` of a tile `x * c`, `c` a positive number."""
    op = value.owner
    if not isinstance(op, ElementwiseOp) or op.fn.data != "mul" or not isinstance(value.type, TileType):
        return None
    if not dtype_of_value(value).is_float:
        return None
    for rest, constant in ((op.args[0], op.args[1]), (op.args[1], op.args[0])):
        number = known(constant)
        if number is not None and _LEAST <= number <= _MOST and known(rest) is None:
            return rest, float(number)
    return None


def _unscaled(value: SSAValue, factor: float) -> float | None:
    """Return the number whose product with the factor rounds to the one that every element is, None for none."""
    number = known(value)
    if number is None or number == 0 or not isfinite(number):
        return number
    if abs(number) > MASK:  # a row of nothing else has differences of 0, which the argument's error would drown
        return None
    kind: Any = dtype_of_value(value).numpy().type
    with np.errstate(all="ignore"):
        wanted, about = kind(number), kind(number / factor)
        near = [np.nextafter(about, kind(end)) for end in ("-inf", "inf")]
        found = [float(each) for each in (about, *near) if np.isfinite(each) and each * kind(factor) == wanted]
    return found[0] if found else None


def _exponential(op: Operation, of: SSAValue) -> ElementwiseOp | None:
    """Return the exponential of f32 that an op's result is all for: the op is `of` plus or minus a shared value."""
    if not isinstance(op, ElementwiseOp) or op.fn.data not in _TERMS or dtype_of_value(of) != dtypes.f32:
        return None
    others = [arg for arg in op.args if arg is not of]
    if len(others) != 1 or repeated(others[0]) is None or not op.result.has_one_use():
        return None
    (use,) = op.result.uses
    user = use.operation
    return user if _is_exp(user) else None


def _is_exp(op: Operation) -> TypeGuard[ElementwiseOp]:
    return isinstance(op, ElementwiseOp) and op.fn.data == "exp"


def _passes(op: Operation, of: SSAValue, factor: float) -> bool:
    """Return whether a factor of the operand `of` may be applied to the op's result instead."""
    if isinstance(op, ReshapeOp | TransposeOp):
        return True
    if not isinstance(op, ElementwiseOp) or op.fn.data not in _PASSED:
        return False
    return all(arg is of or _takes(arg, factor) for arg in _values(op))


def _values(op: ElementwiseOp) -> Sequence[SSAValue]:
    """Return the operands that the result may be."""
    return op.args[1:] if op.fn.data == "select" else op.args


def _takes(value: SSAValue, factor: float) -> bool:
    """Return whether a tile is a number, or another tile, times the factor."""
    found = _factor(value)
    if found is None:
        return _unscaled(value, factor) is not None
    return found[1] == factor and is_moderate(found[0])


def _ends(value: SSAValue, factor: float, moderate: bool) -> bool:
    """Return whether no use of a tile would need its factor, element by element.

    Args:
        value: the tile.
        factor: its factor.
        moderate: whether differences may have the error of fused products; not those of masks.
    """
    return all(_ends_at(use.operation, value, factor, moderate) for use in value.uses)


def _ends_at(op: Operation, value: SSAValue, factor: float, moderate: bool) -> bool:
    if isinstance(op, ReduceOp):
        return op.fn.data in ("max", "min")
    if _is_exp(op):
        return dtype_of_value(value) == dtypes.f32
    if _exponential(op, value) is not None:
        return moderate
    return _passes(op, value, factor) and _ends(op.results[0], factor, moderate)


class _Absorb(RewritePattern):
    """Rewrites all uses of `x * c` when none is left then."""

    @matches_type
    def match_and_rewrite(self, op: ElementwiseOp, rewriter: PatternRewriter, /) -> None:
        found = _factor(op.result)
        if found is None or profile_of(op) != "fast" or not op.result.first_use:
            return
        if not _ends(op.result, found[1], is_moderate(found[0])):
            return
        absorber = _Absorber(rewriter, found[1])
        absorber.replace(op.result, found[0])
        absorber.erase(op)


@dataclass(frozen=True)
class _Absorber:
    """Rewrites the uses of a scaled tile to ones of the tile itself."""

    rewriter: PatternRewriter
    factor: float

    def replace(self, scaled: SSAValue, plain: SSAValue) -> None:
        """Rewrite every use of `scaled`, which is `plain` times the factor."""
        for op in dict.fromkeys(use.operation for use in list(scaled.uses)):
            if isinstance(op, ReduceOp):
                reduced = self._before(op, ReduceOp(plain, op.axis.data, op.fn.data))
                self._finish(op, self._times(op, reduced, self.factor))
            elif _is_exp(op):
                self._finish(op, self._exp2(op, self._times(op, plain, self.factor * LOG2_E)))
            elif (exp := _exponential(op, scaled)) is not None:
                self._exponential(op, exp, scaled, plain)
            else:
                self._pass(op, scaled, plain)

    def _pass(self, op: Operation, scaled: SSAValue, plain: SSAValue) -> None:
        """Apply an op to the tile itself, and rewrite what uses the result."""
        operands = {scaled: plain}
        for arg in _values(op) if isinstance(op, ElementwiseOp) else ():
            if arg not in operands:
                operands[arg] = self._without_factor(op, arg)
        moved = self._before(op, op.clone(operands))
        self.replace(op.results[0], moved)
        self.erase(op)

    def _without_factor(self, at: Operation, value: SSAValue) -> SSAValue:
        found = _factor(value)
        if found is not None:
            return found[0]
        number = _unscaled(value, self.factor)
        assert number is not None, "asked before"
        return self._number(at, number, value)

    def _exponential(self, op: Operation, exp: ElementwiseOp, scaled: SSAValue, plain: SSAValue) -> None:
        """Rewrite `exp(x * c - m)`, or another sum of the two, to `exp2(x * (c log2 e) - m log2 e)`."""
        assert isinstance(op, ElementwiseOp), "asked before"
        product = self._times(exp, plain, self.factor * LOG2_E)
        args = [product if arg is scaled else self._row(exp, arg) for arg in op.args]
        self._finish(exp, self._exp2(exp, self._before(exp, ElementwiseOp(op.fn.data, args))))
        self.erase(op)

    def erase(self, op: Operation) -> None:
        """Remove an op, unless it went with one that it was made for, and what was made for it alone."""
        if op.parent is None:
            return
        operands = list(op.operands)
        self.rewriter.erase(op)
        for owner in dict.fromkeys(value.owner for value in operands):
            if isinstance(owner, Operation) and is_dead(owner):
                self.erase(owner)

    def _row(self, at: Operation, value: SSAValue) -> SSAValue:
        """Return a shared value times log2(e)."""
        source = repeated(value)
        assert source is not None, "asked before"
        scaled = self._times(at, source, LOG2_E)
        kind = BroadcastOp if isinstance(value.owner, BroadcastOp) else SplatOp
        return self._before(at, kind(scaled, shape_of(value.type)))

    def _exp2(self, at: Operation, argument: SSAValue) -> SSAValue:
        return self._before(at, ElementwiseOp("exp2", [argument]))

    def _times(self, at: Operation, value: SSAValue, factor: float) -> SSAValue:
        return self._before(at, ElementwiseOp("mul", [value, self._number(at, factor, value)]))

    def _number(self, at: Operation, number: float, like: SSAValue) -> SSAValue:
        return [self._before(at, constant) for constant in constant_like(number, like.type)][-1]

    def _before(self, at: Operation, op: Operation) -> SSAValue:
        op.location = at.location
        self.rewriter.insert(op, InsertPoint.before(at))
        return op.results[0]

    def _finish(self, op: Operation, result: SSAValue) -> None:
        self.rewriter.replace(op, [], [result])


@dataclass(frozen=True)
class FoldScalesPass(PatternPass):
    """Moves constant factors of tiles to where they cost one operation per row, or none."""

    name = "fold-scales"

    def patterns(self) -> Sequence[RewritePattern]:
        """Return the patterns."""
        return [_Absorb()]
