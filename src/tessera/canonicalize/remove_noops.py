"""remove-noops: removes arithmetic that changes nothing.

    %y = tessera_tile.elementwise "mul"(%x, %one) : (f32, f32) -> f32
    %z = tessera_tile.elementwise "add"(%i, %zero) : (index, index) -> index
  becomes %x and %i.

Exact for every value, so on floats `x + (-0.0)`, `x - 0.0`, `x * 1` and `x / 1` go but `x + 0.0` stays, since
it turns -0.0 into 0.0, and so does `x * 0`, because of NaN. Masks and assertions that are true everywhere go
too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import copysign

from xdsl.ir import SSAValue
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern

from tessera.canonicalize.matching import constant_like, dtype_of_value, known
from tessera.data import dataclass
from tessera.ir.passes import PatternPass
from tessera.ir.rewriting import matches_type
from tessera.ir.tile.debug import AssertOp
from tessera.ir.tile.elementwise import ElementwiseOp
from tessera.ir.tile.memory import GatherOp, LoadOp, ScatterOp, StoreOp

Number = int | float
Neutral = Callable[[Number, bool], bool]
"""Whether a constant leaves the other operand as it is; told whether the type is a float."""


def _is(wanted: int) -> Neutral:
    return lambda number, is_float: number == wanted


def _negative_zero(number: Number, is_float: bool) -> bool:
    return number == 0 and (not is_float or copysign(1, number) < 0)


def _positive_zero(number: Number, is_float: bool) -> bool:
    return number == 0 and copysign(1, number) > 0


_RIGHT: dict[str, Neutral] = {
    "add": _negative_zero,
    "sub": _positive_zero,
    "mul": _is(1),
    "div": _is(1),
    "floordiv": lambda number, is_float: number == 1 and not is_float,
    "or": _is(0),
    "xor": _is(0),
    "shl": _is(0),
    "shr": _is(0),
}
"""Constants that the right operand may be; for commutative functions the left one too."""

_SELF = ("maximum", "minimum", "and", "or")
"""`f(x, x)` is `x`."""

_INVOLUTIONS = ("neg", "not")
"""`f(f(x))` is `x`."""


class _Neutral(RewritePattern):
    """`f(x, neutral)` becomes `x`."""

    @matches_type
    def match_and_rewrite(self, op: ElementwiseOp, rewriter: PatternRewriter, /) -> None:
        neutral = _RIGHT.get(op.fn.data)
        if neutral is None:
            return
        is_float = dtype_of_value(op.result).is_float
        sides = [(op.args[0], op.args[1])]
        if op.fn.data in ("add", "mul", "or", "xor"):
            sides.append((op.args[1], op.args[0]))
        for rest, constant in sides:
            number = known(constant)
            if number is not None and neutral(number, is_float):
                rewriter.replace(op, [], [rest])
                return


class _SameOperands(RewritePattern):
    """`max(x, x)` and `select(c, x, x)` become `x`; on integers `x - x`, `x ^ x` become 0."""

    @matches_type
    def match_and_rewrite(self, op: ElementwiseOp, rewriter: PatternRewriter, /) -> None:
        fn, args = op.fn.data, op.args
        if len(args) < 2 or args[-1] is not args[-2]:
            return
        if fn in _SELF or fn == "select":
            rewriter.replace(op, [], [args[-1]])
        elif fn in ("sub", "xor") and dtype_of_value(op.result).is_int:
            rewriter.replace(op, constant_like(0, op.result.type))


class _Absorbing(RewritePattern):
    """`x * 0` and `x & 0` become 0, `x % 1` becomes 0, on integers and bools."""

    @matches_type
    def match_and_rewrite(self, op: ElementwiseOp, rewriter: PatternRewriter, /) -> None:
        fn, dtype = op.fn.data, dtype_of_value(op.result)
        if dtype.is_float or fn not in ("mul", "and", "mod"):
            return
        zero = known(op.args[1]) == 1 if fn == "mod" else 0 in (known(op.args[0]), known(op.args[1]))
        if zero:
            rewriter.replace(op, constant_like(0, op.result.type))


def _is_bool_true(value: SSAValue) -> bool:
    return dtype_of_value(value).kind == "bool" and known(value) == 1


class _BoolAnd(RewritePattern):
    """`x & true` becomes `x`."""

    @matches_type
    def match_and_rewrite(self, op: ElementwiseOp, rewriter: PatternRewriter, /) -> None:
        if op.fn.data != "and":
            return
        for rest, constant in ((op.args[0], op.args[1]), (op.args[1], op.args[0])):
            if _is_bool_true(constant):
                rewriter.replace(op, [], [rest])
                return


class _Involution(RewritePattern):
    """`-(-x)` becomes `x`."""

    @matches_type
    def match_and_rewrite(self, op: ElementwiseOp, rewriter: PatternRewriter, /) -> None:
        if op.fn.data not in _INVOLUTIONS:
            return
        inner = op.args[0].owner
        if isinstance(inner, ElementwiseOp) and inner.fn == op.fn:
            rewriter.replace(op, [], [inner.args[0]])


class _TrueMask(RewritePattern):
    """A mask that is true everywhere is dropped."""

    @matches_type
    def match_and_rewrite(self, op: LoadOp | StoreOp | GatherOp | ScatterOp, rewriter: PatternRewriter, /) -> None:
        if op.mask is None or known(op.mask) != 1:
            return
        if isinstance(op, LoadOp):
            new = LoadOp(op.tensor, op.offsets, op.size_list, op.dropped, fill=op.fill)
        elif isinstance(op, StoreOp):
            new = StoreOp(op.value, op.tensor, op.offsets, op.size_list, op.dropped)
        elif isinstance(op, GatherOp):
            new = GatherOp(op.tensor, op.indices, fill=op.fill)
        else:
            new = ScatterOp(op.value, op.tensor, op.indices)
        rewriter.replace(op, new)


class _TrueAssertion(RewritePattern):
    """An assertion that is known to hold is dropped."""

    @matches_type
    def match_and_rewrite(self, op: AssertOp, rewriter: PatternRewriter, /) -> None:
        if known(op.condition) == 1:
            rewriter.erase(op)


@dataclass(frozen=True)
class RemoveNoopsPass(PatternPass):
    """Removes arithmetic that changes nothing."""

    name = "remove-noops"

    def patterns(self) -> Sequence[RewritePattern]:
        """Return the patterns."""
        return [
            _Neutral(),
            _SameOperands(),
            _Absorbing(),
            _BoolAnd(),
            _Involution(),
            _TrueMask(),
            _TrueAssertion(),
        ]
