"""fuse-shapes: merges chains of shape changes, and moves them off tiles whose elements are all the same.

    %t = tessera_tile.splat %s : f32 -> !tessera_tile.tile<1x32xf32>
    %b = tessera_tile.broadcast %t : !tessera_tile.tile<1x32xf32> -> !tessera_tile.tile<64x32xf32>
    %u = tessera_tile.elementwise "mul"(%b, %b) : (…) -> !tessera_tile.tile<64x32xf32>
  becomes
    %p = tessera_tile.elementwise "mul"(%s, %s) : (f32, f32) -> f32
    %u = tessera_tile.splat %p : f32 -> !tessera_tile.tile<64x32xf32>

`reshape(reshape(x))`, `broadcast(broadcast(x))` and `transpose(transpose(x))` become one op or none, and a
transpose that only moves dimensions of size 1 becomes a reshape, which moves no data.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern

from tessera.canonicalize.matching import splat_source
from tessera.data import dataclass
from tessera.ir.passes import PatternPass
from tessera.ir.rewriting import matches_type
from tessera.ir.tile.elementwise import CastOp, ElementwiseOp, SplatOp
from tessera.ir.tile.reduce import ReduceOp
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp, TransposeOp
from tessera.ir.tile.types import element_of, shape_of

ShapeOp = BroadcastOp | ReshapeOp | TransposeOp


class _Unchanged(RewritePattern):
    """A shape change to the same shape becomes its source; a transpose must also keep the order."""

    @matches_type
    def match_and_rewrite(self, op: BroadcastOp | ReshapeOp | TransposeOp, rewriter: PatternRewriter, /) -> None:
        if op.source.type != op.result.type:
            return
        if not isinstance(op, TransposeOp) or op.permutation == tuple(range(len(op.permutation))):
            rewriter.replace(op, [], [op.source])


class _OfSplat(RewritePattern):
    """A shape change of a splat becomes a splat."""

    @matches_type
    def match_and_rewrite(self, op: BroadcastOp | ReshapeOp | TransposeOp, rewriter: PatternRewriter, /) -> None:
        if (scalar := splat_source(op.source)) is not None:
            rewriter.replace(op, SplatOp(scalar, shape_of(op.result.type)))


class _Chain(RewritePattern):
    """Two reshapes, broadcasts or transposes in a row become one."""

    @matches_type
    def match_and_rewrite(self, op: BroadcastOp | ReshapeOp | TransposeOp, rewriter: PatternRewriter, /) -> None:
        inner = op.source.owner
        if isinstance(op, ReshapeOp) and isinstance(inner, ReshapeOp):
            rewriter.replace(op, ReshapeOp(inner.source, shape_of(op.result.type)))
        elif isinstance(op, BroadcastOp) and isinstance(inner, BroadcastOp):
            rewriter.replace(op, BroadcastOp(inner.source, shape_of(op.result.type)))
        elif isinstance(op, TransposeOp) and isinstance(inner, TransposeOp):
            perm = [inner.permutation[axis] for axis in op.permutation]
            rewriter.replace(op, TransposeOp(inner.source, perm))


class _TransposeOfOnes(RewritePattern):
    """A transpose that keeps the order of the dimensions larger than 1 becomes a reshape."""

    @matches_type
    def match_and_rewrite(self, op: TransposeOp, rewriter: PatternRewriter, /) -> None:
        shape = shape_of(op.source.type)
        moved = [axis for axis in op.permutation if shape[axis] > 1]
        if moved == sorted(moved):
            rewriter.replace(op, ReshapeOp(op.source, shape_of(op.result.type)))


class _ArithmeticOfSplats(RewritePattern):
    """`f(splat(a), splat(b))` becomes `splat(f(a, b))`."""

    @matches_type
    def match_and_rewrite(self, op: ElementwiseOp, rewriter: PatternRewriter, /) -> None:
        scalars: list[SSAValue] = []
        for arg in op.args:
            scalar = splat_source(arg)
            if scalar is None:
                return
            scalars.append(scalar)
        inner = ElementwiseOp(op.fn.data, scalars)
        rewriter.replace(op, [inner, SplatOp(inner.result, shape_of(op.result.type))])


class _CastOfSplat(RewritePattern):
    """`cast(splat(a))` becomes `splat(cast(a))`."""

    @matches_type
    def match_and_rewrite(self, op: CastOp, rewriter: PatternRewriter, /) -> None:
        if (scalar := splat_source(op.source)) is not None:
            inner = CastOp(scalar, element_of(op.result.type), op.saturate is not None)
            rewriter.replace(op, [inner, SplatOp(inner.result, shape_of(op.result.type))])


class _ReduceOfSplat(RewritePattern):
    """`max(splat(a))` becomes `a`; likewise `min`, and on bools `any` and `all`."""

    @matches_type
    def match_and_rewrite(self, op: ReduceOp, rewriter: PatternRewriter, /) -> None:
        scalar = splat_source(op.source)
        is_bool = str(element_of(op.source.type)) == "i1"
        if scalar is None or not (op.fn.data in ("max", "min") or (is_bool and op.fn.data in ("any", "all"))):
            return
        shape = shape_of(op.result.type)
        if shape:
            rewriter.replace(op, SplatOp(scalar, shape))
        else:
            rewriter.replace(op, [], [scalar])


@dataclass(frozen=True)
class FuseShapesPass(PatternPass):
    """Merges chains of shape changes, and moves them off tiles whose elements are all the same."""

    name = "fuse-shapes"

    def patterns(self) -> Sequence[RewritePattern]:
        """Return the patterns."""
        return [
            _Unchanged(),
            _OfSplat(),
            _Chain(),
            _TransposeOfOnes(),
            _ArithmeticOfSplats(),
            _CastOfSplat(),
            _ReduceOfSplat(),
        ]
