"""expand-sorts: writes the steps of sorting networks, which go over tiles in memory one after the other.

    %y = tessera_tile.sort %x axis 0 : !tessera_tile.tile<4xi32> -> !tessera_tile.tile<4xi32>
  becomes three times
    %other = tessera_tile.exchange %x axis 0 bits 1
    %y = select(%at & 1 != 0, maximum(%x, %other), minimum(%x, %other))
  with bits 1, 3 and 1 and the second bit of %at in the second one

Runs of 2, 4, 8 … are merged. The first step of a merge is mirrored, so that the smaller element always goes to the
lower place; what is missing at the end counts as larger than all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xdsl.ir import SSAValue
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern
from xdsl.rewriter import InsertPoint

from tessera.data import dataclass
from tessera.ir.inserter import Inserter
from tessera.ir.passes import PatternPass
from tessera.ir.rewriting import matches_type
from tessera.ir.tile.elementwise import ArangeOp, ConstantOp, ElementwiseOp, SplatOp
from tessera.ir.tile.exchange import ExchangeOp, SortOp
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp
from tessera.ir.tile.types import shape_of
from tessera.ir.types import element_type
from tessera.numerics import dtypes

I32 = element_type(dtypes.i32)


def steps_of(size: int, merge: bool) -> Iterator[tuple[int, int]]:
    """Yield a network's steps: which bits of an index partners differ in, and the highest of these."""
    run = size if merge else 2
    while run < 2 * size:
        if not merge:
            yield run - 1, run // 2
        step = run // 2 if merge else run // 4
        while step:
            yield step, step
            step //= 2
        run *= 2


class _Expanded(RewritePattern):
    """A sort becomes exchanges, each with a choice of one's own elements or the partner's."""

    @matches_type
    def match_and_rewrite(self, op: SortOp, rewriter: PatternRewriter, /) -> None:
        insert, axis, descending = Inserter(InsertPoint.before(op), op), op.axis.data, op.descending is not None
        shape, values = shape_of(op.sources[0].type), list(op.sources)
        row = insert.value(ArangeOp(op.size, I32))
        for bits, top in steps_of(op.size, op.merge is not None):
            others = [insert.value(ExchangeOp(value, axis, bits)) for value in values]
            upper = _spread(insert, _has(insert, row, top, not descending), shape, axis)
            values = _chosen(insert, values, others, upper)
        rewriter.replace(op, [], values)


def _has(insert: Inserter, row: SSAValue, bit: int, has: bool) -> SSAValue:
    """Return where numbers have a bit, or lack it."""
    shape = shape_of(row.type)
    mask, zero = (insert.value(SplatOp(insert.value(ConstantOp(value, I32)), shape)) for value in (bit, 0))
    masked = insert.value(ElementwiseOp("and", [row, mask]))
    return insert.value(ElementwiseOp("ne" if has else "eq", [masked, zero]))


def _spread(insert: Inserter, row: SSAValue, shape: Sequence[int], axis: int) -> SSAValue:
    """Return a row's elements along an axis."""
    if len(shape) == 1:
        return row
    column = insert.value(ReshapeOp(row, [size if place == axis else 1 for place, size in enumerate(shape)]))
    return insert.value(BroadcastOp(column, shape))


def _chosen(insert: Inserter, own: Sequence[SSAValue], other: Sequence[SSAValue], upper: SSAValue) -> list[SSAValue]:
    """Return the larger of two elements, or pairs of them, in the upper place, and the smaller one in the other."""

    def apply(fn: str, *args: SSAValue) -> SSAValue:
        return insert.value(ElementwiseOp(fn, args))

    if len(own) == 1:
        larger, smaller = apply("maximum", own[0], other[0]), apply("minimum", own[0], other[0])
        return [apply("select", upper, larger, smaller)]
    ties = apply("and", apply("eq", other[0], own[0]), apply("lt", other[1], own[1]))
    before = apply("or", apply("lt", other[0], own[0]), ties)
    taken = apply("ne", before, upper)
    return [apply("select", taken, b, a) for a, b in zip(own, other, strict=True)]


@dataclass(frozen=True)
class ExpandSortsPass(PatternPass):
    """Writes the steps of sorting networks."""

    name = "expand-sorts"

    def patterns(self) -> Sequence[RewritePattern]:
        """Return the patterns."""
        return [_Expanded()]
