"""gather-taken: reads the few elements that are taken of a long tile from memory again, so that the tile is not kept.

    %row = tessera_tile.load %X[%i, %zero] [1, 65536] drop [0] : … -> !tessera_tile.tile<65536xf32>
    %key = tessera_tile.elementwise "neg"(%row) : …
    %y = tessera_tile.take %key[%places] axis 0 : …[!tessera_tile.tile<512xi32>] -> !tessera_tile.tile<512xf32>
  becomes
    %again = tessera_tile.gather %X[%rows, %places] : … -> !tessera_tile.tile<512xf32>
    %other = tessera_tile.elementwise "neg"(%again) : …
    %y = tessera_tile.elementwise "select"(%places inside, %other, 0)

Nothing between the load and the moment when they are taken may write to memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.ir import Operation, SSAValue
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern
from xdsl.rewriter import InsertPoint, Rewriter

from tessera.canonicalize.matching import splat_source
from tessera.data import dataclass
from tessera.ir.effects import Effect, effect_of
from tessera.ir.inserter import Inserter
from tessera.ir.passes import PatternPass
from tessera.ir.rewriting import matches_type
from tessera.ir.tile.elementwise import ArangeOp, BitcastOp, CastOp, ConstantOp, ElementwiseOp, SplatOp
from tessera.ir.tile.memory import GatherOp, LoadOp
from tessera.ir.tile.parts import PartOp, TakeOp
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp, TransposeOp
from tessera.ir.tile.types import element_of, shape_of
from tessera.ir.types import dtype_of, index
from tessera.ir.walking import ops_in
from tessera.lower.parts import starts_with_all

LONG = 8192
"""Elements of the shortest tile that is read again: 32 KB of shared memory, where the others of 4 bytes are kept."""
FEW = 8
"""How many times more elements it has than are taken at least."""
MOST_OPS = 32
"""Operations that are done again at most."""


class _Kept(Exception):
    """A tile is read where it is kept."""


class _OfLoaded(RewritePattern):
    """What is taken of tiles that are computed of loaded ones is computed of what is loaded there."""

    @matches_type
    def match_and_rewrite(self, op: TakeOp, rewriter: PatternRewriter, /) -> None:
        size = prod(shape_of(op.source.type))
        if size < LONG or size < FEW * prod(shape_of(op.index.type)):
            return
        again = _Again(op, Inserter(InsertPoint.before(op), op))
        try:
            value = again.taken(op.source, op.index, op.axis.data)
        except _Kept:
            for made in reversed(again.made):
                Rewriter.erase_op(made)
            return
        rewriter.replace(op, [], [again.inside(value)])


class _Again:
    """Computes elements of a tile again.

    Args:
        op: takes them.
        insert: adds ops before it.
    """

    def __init__(self, op: TakeOp, insert: Inserter) -> None:
        self.op, self.insert = op, insert
        self.made: list[Operation] = []
        self.known: dict[tuple[SSAValue, SSAValue], SSAValue] = {}
        self.left = MOST_OPS

    def value(self, op: Operation) -> SSAValue:
        """Add an op and return its result."""
        self.made.append(self.insert.add(op))
        return op.results[0]

    def full(self, value: int, like: SSAValue) -> SSAValue:
        """Return an integer in each element of a tile's shape and type."""
        return self.value(SplatOp(self.value(ConstantOp(value, element_of(like.type))), shape_of(like.type)))

    def inside(self, value: SSAValue) -> SSAValue:
        """Return elements with zero where the index lies outside."""
        op, at = self.op, self.op.index
        size, dtype = shape_of(op.source.type)[op.axis.data], dtype_of(element_of(at.type))
        here = None
        if dtype.kind == "int":
            here = self.value(ElementwiseOp("ge", [at, self.full(0, at)]))
        if size < 1 << dtype.bits - (dtype.kind == "int"):
            below = self.value(ElementwiseOp("lt", [at, self.full(size, at)]))
            here = below if here is None else self.value(ElementwiseOp("and", [here, below]))
        if here is None:
            return value
        zero = self.value(SplatOp(self.insert.zero(element_of(value.type)), shape_of(value.type)))
        return self.value(ElementwiseOp("select", [here, value, zero]))

    def taken(self, source: SSAValue, at: SSAValue, axis: int) -> SSAValue:
        """Return the elements of a tile at places along a dimension; anything where these lie outside.

        Raises:
            _Kept: the tile is not computed of loaded ones element by element, or they may have changed.
        """
        if (source, at) not in self.known:
            self.left -= 1
            if self.left < 0:
                raise _Kept
            self.known[source, at] = self._taken(source, at, axis)
        return self.known[source, at]

    def _taken(self, source: SSAValue, at: SSAValue, axis: int) -> SSAValue:
        if (scalar := _everywhere(source)) is not None:
            return self.value(SplatOp(scalar, shape_of(at.type)))
        if _is_place(source, axis):
            element = element_of(source.type)
            return at if element_of(at.type) == element else self.value(CastOp(at, element))
        match source.owner:
            case ElementwiseOp() as made:
                return self.value(ElementwiseOp(made.fn.data, [self.taken(arg, at, axis) for arg in made.args]))
            case CastOp() as made:
                arg = self.taken(made.source, at, axis)
                return self.value(CastOp(arg, element_of(source.type), made.saturate is not None))
            case BitcastOp() as made:
                return self.value(BitcastOp(self.taken(made.source, at, axis), element_of(source.type)))
            case PartOp() as made if starts_with_all(made):
                return self.taken(made.source, at, axis)
            case ReshapeOp() as made:
                return self._of_reshaped(made, at, axis)
            case TransposeOp() as made:
                order = made.permutation
                back = [order.index(place) for place in range(len(order))]
                inner = self.taken(made.source, self.value(TransposeOp(at, back)), order[axis])
                return self.value(TransposeOp(inner, order))
            case LoadOp() as load:
                return self._gathered(load, at, axis)
            case _:
                raise _Kept

    def _of_reshaped(self, op: ReshapeOp, at: SSAValue, axis: int) -> SSAValue:
        """Take of a tile that has other dimensions of one element."""
        before, after, places = shape_of(op.source.type), shape_of(op.result.type), shape_of(at.type)
        long = [size for size in before if size > 1]
        if long != [size for size in after if size > 1] or after[axis] == 1:
            raise _Kept
        number = sum(size > 1 for size in after[:axis])
        inner = [place for place, size in enumerate(before) if size > 1][number]
        shape = [places[axis] if place == inner else size for place, size in enumerate(before)]
        found = self.taken(op.source, self.value(ReshapeOp(at, shape)), inner)
        return self.value(ReshapeOp(found, places))

    def _gathered(self, load: LoadOp, at: SSAValue, axis: int) -> SSAValue:
        """Load single elements of a box."""
        if load.mask is not None or load.fill is not None or not _nothing_written(load, self.op):
            raise _Kept
        shape, indices = shape_of(at.type), list[SSAValue]()
        for dim, offset in enumerate(load.offsets):
            start = self.value(SplatOp(offset, shape))
            if dim in load.kept:
                place = load.kept.index(dim)
                along = self.value(CastOp(at, index)) if place == axis else self._number(shape, place)
                start = self.value(ElementwiseOp("add", [start, along]))
            indices.append(start)
        return self.value(GatherOp(load.tensor, indices))

    def _number(self, shape: Sequence[int], axis: int) -> SSAValue:
        """Return places along a dimension."""
        row = self.value(ArangeOp(shape[axis], index))
        column = self.value(ReshapeOp(row, [size if place == axis else 1 for place, size in enumerate(shape)]))
        return self.value(BroadcastOp(column, shape))


def _everywhere(value: SSAValue) -> SSAValue | None:
    """Return the scalar that a tile repeats."""
    while isinstance(value.owner, BroadcastOp | ReshapeOp):
        value = value.owner.source
    return splat_source(value)


def _is_place(value: SSAValue, axis: int) -> bool:
    """Return whether the elements of a tile are their places along a dimension."""
    size = shape_of(value.type)[axis]
    while isinstance(value.owner, BroadcastOp | ReshapeOp):
        inner = value.owner.source
        long = [place for place, each in enumerate(shape_of(inner.type)) if each > 1]
        if isinstance(value.owner, BroadcastOp) and long != [axis]:
            return False
        if isinstance(value.owner, ReshapeOp):
            outer = [place for place, each in enumerate(shape_of(value.type)) if each > 1]
            if outer != [axis] or len(long) != 1:
                return False
            axis = long[0]
        value = inner
    return isinstance(value.owner, ArangeOp) and shape_of(value.type) == (size,) and axis == 0


def _nothing_written(load: LoadOp, op: Operation) -> bool:
    """Return whether memory is the same from a load to an op behind it, which then may load again."""
    between = load.next_op if load.parent_block() is op.parent_block() else None
    while between is not None and between is not op:
        if any(_writes(inner) for inner in ops_in(between)):
            return False
        between = between.next_op
    return between is op


def _writes(op: Operation) -> bool:
    return not op.regions and not isinstance(op, LoadOp | GatherOp) and effect_of(op) > Effect.RANDOM


@dataclass(frozen=True)
class GatherTakenPass(PatternPass):
    """Reads elements that are taken of long loaded tiles from memory again."""

    name = "gather-taken"

    def patterns(self) -> Sequence[RewritePattern]:
        """Return the patterns."""
        return [_OfLoaded()]
