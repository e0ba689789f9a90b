"""round-products: under `fast`, rounds products of numbers that may be masks before a maximum is subtracted from them.

    %s = tessera_tile.elementwise "mul"(%x, splat %scale)
    %d = tessera_tile.elementwise "sub"(%s, broadcast %top)
    %p = tessera_tile.elementwise "exp"(%d)
  becomes
    %s = tessera_tile.elementwise "rounded_mul"(%x, splat %scale)

A fused multiply-add does not round the product, the maximum was rounded. Where all of a row is hidden by -1e9, say, the
product is the maximum and their difference 0, but the fused one is half a unit in its last place, up to 2^8 there: the
exponential is anything then, infinity or NaN for larger masks. Products of matrices, and what is computed from them and
numbers no larger than 2^14, are no masks: their products stay fused.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from xdsl.ir import Operation, SSAValue
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern
from xdsl.rewriter import InsertPoint

from tessera.canonicalize.matching import known, repeated
from tessera.data import dataclass
from tessera.ir.passes import PatternPass
from tessera.ir.rewriting import matches_type
from tessera.ir.tile.elementwise import CastOp, ElementwiseOp, SplatOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.reduce import ReduceOp
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp, TransposeOp
from tessera.ir.tile.structure import profile_of
from tessera.ir.tile.types import TileType, shape_of
from tessera.numerics.functions import exact

MASK = 2.0**14
"""Larger numbers hide elements."""
_MOST_STEPS = 64
"""Ops looked at: what is computed in more is taken for a mask."""
_BOUNDED = ("tanh", "sigmoid", "erf", "sin", "cos")
_PASSED = ("select", "maximum", "minimum", "abs", "neg", "add", "sub", "mul")
_EXPONENTIALS = ("exp", "exp2")


def is_moderate(value: SSAValue) -> bool:
    """Return whether no element of a value is a finite number that stands for an infinity, as far as its ops tell."""
    work, seen = [value], {value}
    while work:
        if len(seen) > _MOST_STEPS:
            return False
        sources = _sources(work.pop())
        if sources is None:
            return False
        work += [source for source in sources if source not in seen]
        seen.update(sources)
    return True


def _sources(value: SSAValue) -> Sequence[SSAValue] | None:
    """Return the values that must be moderate for this one to be; None where it may be a mask."""
    number, owner = known(value), value.owner
    if number is not None:
        return None if isfinite(number) and abs(number) > MASK else ()
    if isinstance(owner, MmaOp):
        return (owner.acc,)
    if isinstance(owner, ReshapeOp | TransposeOp | BroadcastOp | CastOp | ReduceOp):
        return owner.operands
    if isinstance(owner, SplatOp):
        return (owner.value,)
    if not isinstance(owner, ElementwiseOp):
        return None
    fn, args = owner.fn.data, list(owner.args)
    if exact(fn) in _BOUNDED:
        return ()
    if fn == "mul":  # by a scale
        return [arg for arg in args if not isinstance(arg.owner, SplatOp)] or args
    if fn == "select":
        return args[1:]
    return args if fn in _PASSED else None


class _Difference(RewritePattern):
    """`exp(x * c - m)`, where all elements of a row, a column or the tile share m."""

    @matches_type
    def match_and_rewrite(self, op: ElementwiseOp, rewriter: PatternRewriter, /) -> None:
        if op.fn.data not in _EXPONENTIALS or not isinstance(op.result.type, TileType) or profile_of(op) != "fast":
            return
        difference = _unscaled(op.args[0]).owner
        if not isinstance(difference, ElementwiseOp) or difference.fn.data not in ("sub", "add"):
            return
        args = tuple(difference.args)
        beside = [arg for arg, other in zip(args, args[::-1], strict=True) if repeated(other) is not None]
        if all(map(is_moderate, beside)):
            return
        for at, arg in enumerate(args):
            rounded = _rounded(arg)
            if rounded:
                rewriter.insert(rounded, InsertPoint.before(difference))
                difference.operands[at] = rounded[-1].results[0]
                rewriter.handle_operation_modification(difference)


def _rounded(value: SSAValue) -> list[Operation]:
    """Return the ops that make a product, or one that is repeated, a rounded one; none for other values."""
    owner = value.owner
    if isinstance(owner, ElementwiseOp) and owner.fn.data == "mul":
        product = ElementwiseOp("rounded_mul", list(owner.args))
        product.location = owner.location
        return [product]
    if not isinstance(owner, BroadcastOp | SplatOp):
        return []
    made = _rounded(owner.operands[0])
    if made:
        kind = BroadcastOp if isinstance(owner, BroadcastOp) else SplatOp
        made.append(kind(made[-1].results[0], shape_of(value.type)))
        made[-1].location = owner.location
    return made


def _unscaled(value: SSAValue) -> SSAValue:
    """Return what an exponential's argument is a multiple of, by log2(e) for instance."""
    owner = value.owner
    while isinstance(owner, ElementwiseOp) and owner.fn.data == "mul":
        factors = [arg for arg in owner.args if known(arg) is None]
        if len(factors) != 1:
            break
        value = factors[0]
        owner = value.owner
    return value


@dataclass(frozen=True)
class RoundProductsPass(PatternPass):
    """Rounds products of numbers that may be masks before a maximum is subtracted from them."""

    name = "round-products"

    def patterns(self) -> Sequence[RewritePattern]:
        """Return the patterns."""
        return [_Difference()]
