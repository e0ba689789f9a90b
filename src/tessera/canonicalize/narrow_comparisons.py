"""narrow-comparisons: compares positions in a tensor in 32 bits per element, where a scalar takes the wide part.

    %i = tessera_tile.cast (tessera_tile.arange) : tile<128xi32> -> tile<128xi64>
    %at = tessera_tile.elementwise "add"(splat %n, %i)
    %mask = tessera_tile.elementwise "lt"(%at, splat %size)
  becomes, with %rest = min(max(%size - %n, -2**30), 2**30) computed once,
    %mask = tessera_tile.elementwise "lt"(tessera_tile.arange, splat (cast %rest : i32))

The bounds do not change what holds: an element's own part is at least 0 and less than 2**30. Only indices qualify as
the wide part: sizes and positions, which are far from overflowing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import cast

from xdsl.ir import Operation, SSAValue
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern

from tessera.canonicalize.matching import dtype_of_value
from tessera.data import dataclass
from tessera.ir.passes import PatternPass
from tessera.ir.rewriting import matches_type
from tessera.ir.tile.elementwise import ArangeOp, CastOp, ConstantOp, ElementwiseOp, SplatOp, constant_value
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp
from tessera.ir.tile.types import TileType, shape_of
from tessera.ir.types import element_type, index
from tessera.numerics import dtypes

_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
_MOST = 1 << 30
_I32 = element_type(dtypes.i32)

Made = Callable[[SSAValue], Operation]
"""Builds an op of a shape from the tile it reads."""


@dataclass(frozen=True)
class _Sum:
    """A tile as a sum of scalars and of the elements' own part.

    Args:
        scalars: indices, or numbers, that are added.
        own: the elements' own part, of 32 bits; None for none.
        views: ops that the own part still goes through.
    """

    scalars: tuple[SSAValue | int, ...] = ()
    own: SSAValue | None = None
    views: tuple[Made, ...] = ()


def _sum_of(value: SSAValue) -> _Sum | None:
    """Return a tile of places as a sum, None where it is something else."""
    owner = value.owner
    if isinstance(owner, SplatOp):
        scalar = _scalar(owner.value)
        return None if scalar is None else _Sum((scalar,))
    if isinstance(owner, CastOp) and isinstance(owner.source.owner, ArangeOp):
        return _Sum(own=owner.source) if dtype_of_value(owner.source) == dtypes.i32 else None
    if isinstance(owner, ReshapeOp | BroadcastOp):
        inner, shape = _sum_of(owner.source), shape_of(owner.result.type)
        if inner is None or inner.own is None:
            return inner
        return replace(inner, views=(*inner.views, partial(_again, type(owner), shape)))
    if isinstance(owner, ElementwiseOp) and owner.fn.data == "add":
        parts = [_sum_of(operand) for operand in owner.args]
        if any(part is None for part in parts):
            return None
        a, b = cast("list[_Sum]", parts)
        if a.own is not None and b.own is not None:
            return None
        varying = b if a.own is None else a
        return replace(varying, scalars=a.scalars + b.scalars)
    return None


def _again(kind: type[ReshapeOp] | type[BroadcastOp], shape: Sequence[int], source: SSAValue) -> Operation:
    return kind(source, shape)


def _scalar(value: SSAValue) -> SSAValue | int | None:
    """Return an index or a number that a 64-bit scalar is."""
    number = constant_value(value)
    if number is not None:
        return int(number) if abs(number) < _MOST else None
    if value.type == index:
        return value
    owner = value.owner
    return owner.source if isinstance(owner, CastOp) and owner.source.type == index else None


class _Comparison(RewritePattern):
    """`lt(s + i, t + j)` becomes `lt(i, j + (t - s))`."""

    @matches_type
    def match_and_rewrite(self, op: ElementwiseOp, rewriter: PatternRewriter, /) -> None:
        if op.fn.data not in _COMPARISONS or not isinstance(op.args[0].type, TileType):
            return
        if op.args[0].type.element != index and dtype_of_value(op.args[0]) != dtypes.i64:
            return
        left, right = (_sum_of(operand) for operand in op.args)
        if left is None or right is None or (left.own is None and right.own is None):
            return
        shape = shape_of(op.result.type)
        build = _Builder(rewriter, op)
        if left.own is None:  # s < t + j where s - t < j
            operands = [build.splat(build.difference(left, right), shape), build.own(right)]
        else:
            rest = build.splat(build.difference(right, left), shape)
            if right.own is not None:
                rest = build.value(ElementwiseOp("add", [build.own(right), rest]))
            operands = [build.own(left), rest]
        rewriter.replace(op, ElementwiseOp(op.fn.data, operands))


@dataclass(frozen=True)
class _Builder:
    """Adds ops before the comparison."""

    rewriter: PatternRewriter
    before: Operation

    def value(self, op: Operation) -> SSAValue:
        op.location = self.before.location
        self.rewriter.insert(op)
        return op.results[0]

    def own(self, part: _Sum) -> SSAValue:
        """Return the elements' own part."""
        assert part.own is not None
        made = part.own
        for view in part.views:
            made = self.value(view(made))
        return made

    def difference(self, plus: _Sum, minus: _Sum) -> SSAValue:
        """Return the difference of the scalars, within bounds, as 32 bits."""
        total = self._total(plus.scalars)
        if minus.scalars:
            total = self.value(ElementwiseOp("sub", [total, self._total(minus.scalars)]))
        for fn, bound in (("maximum", -_MOST), ("minimum", _MOST)):
            total = self.value(ElementwiseOp(fn, [total, self.value(ConstantOp(bound, index))]))
        return self.value(CastOp(total, _I32))

    def _total(self, scalars: Sequence[SSAValue | int]) -> SSAValue:
        known = sum(scalar for scalar in scalars if isinstance(scalar, int))
        others = [scalar for scalar in scalars if not isinstance(scalar, int)]
        if known or not others:
            others.append(self.value(ConstantOp(known, index)))
        total = others[0]
        for other in others[1:]:
            total = self.value(ElementwiseOp("add", [total, other]))
        return total

    def splat(self, scalar: SSAValue, shape: Sequence[int]) -> SSAValue:
        """Return a tile of a scalar."""
        return self.value(SplatOp(scalar, shape))


@dataclass(frozen=True)
class NarrowComparisonsPass(PatternPass):
    """Compares positions in 32 bits per element."""

    name = "narrow-comparisons"

    def patterns(self) -> Sequence[RewritePattern]:
        """Return the patterns."""
        return [_Comparison()]
