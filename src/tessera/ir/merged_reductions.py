"""Splits reductions along merged dimensions, which loops over chunks of one of the dimensions can compute then.

%flat = reshape %x : tile<4x65536xf32> -> tile<262144xf32>
%sum = reduce "sum" %flat axis 0
becomes
%rows = reduce "sum" %x axis 1
%sum = reduce "sum" %rows axis 0
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from tessera.data import dataclass
from tessera.ir.inserter import Inserter
from tessera.ir.tile.elementwise import ArangeOp, BitcastOp, CastOp, ConstantOp, ElementwiseOp, SplatOp
from tessera.ir.tile.reduce import ReduceByOp, ReduceOp, combiner_of
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp
from tessera.ir.tile.structure import profile_of
from tessera.ir.tile.types import element_of, shape_of
from tessera.ir.types import dtype_of
from tessera.numerics.order import is_ordered

DEPTH = 6
"""Operations back that are looked at to find the shape before."""

_ALIKE = (ElementwiseOp, CastOp, BitcastOp, SplatOp, ArangeOp)


class _Kept(Exception):
    """A reduction stays as it is."""


def split_merged_reduction(op: ReduceOp | ReduceByOp) -> bool:
    """Reduce along each of the dimensions that a reshape has merged; return whether that was possible."""
    try:
        merged = _merged(op)
        insert = Inserter(InsertPoint.before(op), op)
        values = [merged.apart(insert, value, DEPTH) for value in op.operands]
    except _Kept:
        return False
    for axis in reversed(merged.axes):
        if isinstance(op, ReduceOp):
            values = [insert.value(ReduceOp(values[0], axis, op.fn.data))]
        else:
            values = list(insert.add(ReduceByOp(values, axis, combiner_of(op))).results)
    for old, new in zip(op.results, values, strict=True):
        old.replace_all_uses_with(new)
    sources = list(op.operands)
    Rewriter.erase_op(op)
    _erase_unused(sources)
    return True


def _erase_unused(values: Sequence[SSAValue]) -> None:
    """Erase what nothing reads any more of what the tiles were made of, element by element."""
    work = list(values)
    while work:
        value = work.pop()
        if isinstance(value.owner, (ReshapeOp, *_ALIKE)) and not value.uses.get_length():
            work += value.owner.operands
            Rewriter.erase_op(value.owner)


@dataclass(frozen=True)
class _Merged:
    """A dimension that several have become.

    Args:
        shape: of the tiles that are reduced.
        before: the shape that it has been made of.
        axes: the dimensions there that have become one.
    """

    shape: tuple[int, ...]
    before: tuple[int, ...]
    axes: range

    def apart(self, insert: Inserter, value: SSAValue, depth: int) -> SSAValue:
        """Return a tile in the shape before.

        Raises:
            _Kept: it is not made element by element.
        """
        match value.owner:
            case ReshapeOp(source=source) if shape_of(source.type) == self.before:
                return source
            case SplatOp(value=scalar):
                return insert.value(SplatOp(scalar, self.before))
            case ArangeOp():
                return self._places(insert, value)
            case ElementwiseOp() | CastOp() | BitcastOp() as made if depth and len(made.results) == 1:
                args = [self.apart(insert, arg, depth - 1) for arg in made.operands]
                return insert.value(_again(made, args))
            case _:
                raise _Kept

    def _places(self, insert: Inserter, value: SSAValue) -> SSAValue:
        """Return the numbers of elements in row-major order."""
        element, total = element_of(value.type), None
        for axis, size in enumerate(self.before):
            along = insert.value(ArangeOp(size, element))
            if (stride := prod(self.before[axis + 1 :])) > 1:
                factor = insert.value(SplatOp(insert.value(ConstantOp(stride, element)), [size]))
                along = insert.value(ElementwiseOp("mul", [along, factor]))
            if len(self.before) > 1:
                along = insert.value(ReshapeOp(along, [size if a == axis else 1 for a in range(len(self.before))]))
                along = insert.value(BroadcastOp(along, self.before))
            total = along if total is None else insert.value(ElementwiseOp("add", [total, along]))
        assert total is not None
        return total


def _merged(op: ReduceOp | ReduceByOp) -> _Merged:
    """Return which dimensions have become the one that is reduced.

    Raises:
        _Kept: none, or `strict` gives the order of their elements.
    """
    profile, dtype = profile_of(op), dtype_of(element_of(op.operands[0].type))
    ordered = is_ordered(profile, op.fn.data, dtype.is_float) if isinstance(op, ReduceOp) else profile == "strict"
    shape, axis = shape_of(op.operands[0].type), op.axis.data
    for reshape in [] if ordered else _reshapes(op.operands, shape, DEPTH):
        before = shape_of(reshape.source.type)
        axes = range(axis, len(before) - (len(shape) - axis - 1))
        rest = (before[: axes.start], before[axes.stop :])
        if len(axes) > 1 and rest == (shape[:axis], shape[axis + 1 :]):
            return _Merged(shape, before, axes)
    raise _Kept


def _again(made: ElementwiseOp | CastOp | BitcastOp, args: Sequence[SSAValue]) -> Operation:
    if isinstance(made, ElementwiseOp):
        return ElementwiseOp(made.fn.data, args)
    element = element_of(made.result.type)
    if isinstance(made, BitcastOp):
        return BitcastOp(args[0], element)
    return CastOp(args[0], element, made.saturate is not None)


def _reshapes(values: Sequence[SSAValue], shape: Sequence[int], depth: int) -> list[ReshapeOp]:
    """Return the changes to a shape that tiles of it are made of, element by element."""
    found = list[ReshapeOp]()
    for value in values:
        if isinstance(value.owner, ReshapeOp):
            found.append(value.owner)
        elif isinstance(value.owner, ElementwiseOp | CastOp | BitcastOp) and depth:
            found += _reshapes(value.owner.operands, shape, depth - 1)
    return found
