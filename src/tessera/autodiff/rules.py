"""The derivative of each op of Graph IR: what goes forwards beside it, and what comes back to its operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import singledispatch
from typing import Any

from xdsl.ir import Operation, SSAValue

from tessera.autodiff.partials import PARTIALS
from tessera.errors import LanguageError
from tessera.ir.graph.points import CastOp, MapOp
from tessera.ir.graph.sums import ContractOp, ReduceOp
from tessera.ir.graph.takes import AddRowsOp, TakeOp
from tessera.ir.graph.types import ONE, ZERO, array_type, dims_of, product
from tessera.ir.graph.views import (
    AliasOp,
    BroadcastOp,
    ConcatOp,
    PlaceOp,
    ReshapeOp,
    SliceOp,
    StopOp,
    TransposeOp,
)
from tessera.ir.graph.writer import GraphWriter
from tessera.ir.locations import location_of
from tessera.numerics.dtypes import f32, i64

Cotangents = Sequence[SSAValue | None]
"""What comes back to each operand of an op; None where it has no influence."""


_AVOID = "compute it outside of what is differentiated, or from ts.stop_gradient(x)"


def no_adjoint(op: Operation, what: str, help: str = _AVOID) -> LanguageError:
    """Return the error for an op that has no derivative."""
    return LanguageError(f"{what} has no adjoint", code="no-adjoint", location=location_of(op), help=help)


@singledispatch
def pull_back(op: Any, w: GraphWriter, cotangent: SSAValue) -> Cotangents:
    """Append what comes back to an op's operands from what comes back to its result.

    Args:
        op: the op.
        w: the graph, to whose end ops are written.
        cotangent: the derivative of what is differentiated by the op's result.

    Raises:
        LanguageError: `no-adjoint`.
    """
    raise no_adjoint(op, op.name.partition(".")[2])


@singledispatch
def push_forward(op: Any, w: GraphWriter, tangents: Sequence[SSAValue | None]) -> SSAValue | None:
    """Append the derivative of an op's result along those of its operands.

    Args:
        op: the op.
        w: the graph, to whose end ops are written.
        tangents: the derivative of each operand; None where it is 0.

    Raises:
        LanguageError: `no-adjoint`.
    """
    raise no_adjoint(op, op.name.partition(".")[2])


def is_smooth(value: SSAValue) -> bool:
    """Return whether a value is of numbers that have derivatives."""
    return array_type(value).dtype.is_float


def _partials(op: MapOp, w: GraphWriter) -> list[Callable[[], Any] | None]:
    """Return for each operand of a function, other than `select`, how its derivative is written; None where it is 0."""
    if not is_smooth(op.result):
        return [None] * len(op.args)
    found = PARTIALS.get(op.fn.data)
    if found is None:
        raise no_adjoint(op, op.fn.data)
    args = list(op.args)
    return [None if one is None else lambda one=one: one(w.apply, args, op.result) for one in found]


@pull_back.register
def _(op: MapOp, w: GraphWriter, cotangent: SSAValue) -> Cotangents:
    if op.fn.data == "select":
        zero = w.full(0.0, array_type(cotangent).dtype)
        return [
            None,
            w.apply("select", op.args[0], cotangent, zero),
            w.apply("select", op.args[0], zero, cotangent),
        ]
    found = _partials(op, w)
    return [None if one is None else _scaled(w, cotangent, one()) for one in found]


def _scaled(w: GraphWriter, value: SSAValue, factor: Any) -> SSAValue:
    """Return a value times a derivative, which may be a number."""
    if isinstance(factor, float) and factor == 1.0:
        return value
    return w.apply("neg", value) if isinstance(factor, float) and factor == -1.0 else w.apply("mul", value, factor)


@push_forward.register
def _(op: MapOp, w: GraphWriter, tangents: Sequence[SSAValue | None]) -> SSAValue | None:
    if op.fn.data == "select":
        zero = w.full(0.0, array_type(op.result).dtype)
        return w.apply("select", op.args[0], *(zero if one is None else one for one in tangents[1:]))
    parts = [
        _scaled(w, tangent, one())
        for tangent, one in zip(tangents, _partials(op, w), strict=True)
        if tangent is not None and one is not None
    ]
    return added(w, parts)


def added(w: GraphWriter, parts: Sequence[SSAValue]) -> SSAValue | None:
    """Return a sum, None of nothing."""
    total: SSAValue | None = None
    for part in parts:
        total = part if total is None else w.apply("add", total, part)
    return total


@pull_back.register
def _(op: CastOp, w: GraphWriter, cotangent: SSAValue) -> Cotangents:
    return [w.cast(cotangent, array_type(op.source).dtype) if is_smooth(op.source) else None]


@push_forward.register
def _(op: CastOp, w: GraphWriter, tangents: Sequence[SSAValue | None]) -> SSAValue | None:
    if tangents[0] is None or not is_smooth(op.result):
        return None
    return w.cast(tangents[0], array_type(op.result).dtype)


@push_forward.register(BroadcastOp)
@push_forward.register(ReshapeOp)
@push_forward.register(TransposeOp)
@push_forward.register(SliceOp)
@push_forward.register(PlaceOp)
def _(op: Operation, w: GraphWriter, tangents: Sequence[SSAValue | None]) -> SSAValue | None:
    return None if tangents[0] is None else w.again(op, [tangents[0]])


@pull_back.register
def _(op: BroadcastOp, w: GraphWriter, cotangent: SSAValue) -> Cotangents:
    source, dims = dims_of(op.source), dims_of(op.result)
    grown = [axis for axis in range(len(dims)) if axis not in op.places]
    grown += [at for dim, at in zip(source, op.places, strict=True) if dim == ONE and dims[at] != ONE]
    return [w.reshape(w.reduce("sum", cotangent, sorted(grown)), source)]


@pull_back.register
def _(op: ReshapeOp, w: GraphWriter, cotangent: SSAValue) -> Cotangents:
    return [w.reshape(cotangent, dims_of(op.source))]


@pull_back.register
def _(op: TransposeOp, w: GraphWriter, cotangent: SSAValue) -> Cotangents:
    perm = op.permutation
    return [w.transpose(cotangent, sorted(range(len(perm)), key=perm.__getitem__))]


@pull_back.register
def _(op: SliceOp, w: GraphWriter, cotangent: SSAValue) -> Cotangents:
    return [w.place(cotangent, dims_of(op.source), op.first, op.apart)]


@push_forward.register
def _(op: TakeOp, w: GraphWriter, tangents: Sequence[SSAValue | None]) -> SSAValue | None:
    return None if tangents[0] is None else w.again(op, [tangents[0], *op.indices])


@pull_back.register
def _(op: TakeOp, w: GraphWriter, cotangent: SSAValue) -> Cotangents:
    if not is_smooth(op.source):
        return [None] * len(op.operands)
    dims, places, none = dims_of(op.result), op.places, [None] * len(op.indices)
    stay = [at for at in places if isinstance(at, int)]
    thin = [axis for axis in range(len(dims)) if axis not in stay]
    if len(op.indices) != 1 or stay != sorted({*stay}) or any(dims[axis] != ONE for axis in thin):
        return [_added_up(op, w, cotangent), *none]
    # One element at most of each row is taken: it gets all that comes back.
    (axis,) = (number for number, at in enumerate(places) if not isinstance(at, int))
    whole = dims_of(op.source)
    here = w.apply("eq", w.iota(whole, axis, i64), w.cast(_row_of(w, op.indices[0], thin, axis), i64))
    return [w.apply("select", here, _row_of(w, cotangent, thin, axis), 0.0), *none]


def _row_of(w: GraphWriter, value: SSAValue, thin: Sequence[int], axis: int) -> SSAValue:
    """Return an array with one element along a dimension, in place of some that have one."""
    return w.with_ones(w.without(value, thin), [axis])


def _added_up(op: TakeOp, w: GraphWriter, cotangent: SSAValue) -> SSAValue:
    """Return what comes back to an array of which an element may be taken several times: sums, in a fixed order.

    Dimensions that stay as they are and that no index goes along are the rows; all others are numbered together.
    """
    dims, whole, places = dims_of(op.result), dims_of(op.source), op.places
    chosen = {axis for index in op.indices for axis in _goes_along(index)}
    stay = {axis: at for axis, at in enumerate(places) if isinstance(at, int) and places.count(at) == 1}
    rows = [axis for axis, at in stay.items() if at not in chosen]
    inner = [stay[axis] for axis in rows]
    apart = [axis for axis in range(len(whole)) if axis not in rows]
    outer = [axis for axis in range(len(dims)) if axis not in inner]
    number = _numbers(op, w, apart, outer)
    dtype = array_type(cotangent).dtype
    wide = w.cast(cotangent, f32) if dtype.bits < 16 else cotangent
    length = product([dims[axis] for axis in outer])
    matrix = w.reshape(w.transpose(wide, [*outer, *inner]), [length, product([dims[axis] for axis in inner])])
    total = w.add_rows(matrix, w.reshape(number, [length]), product([whole[axis] for axis in apart]))
    order = [*apart, *rows]
    found = w.reshape(w.cast(total, dtype), [whole[axis] for axis in order])
    return w.transpose(found, sorted(range(len(order)), key=order.__getitem__))


def _goes_along(index: SSAValue) -> list[int]:
    """Return the dimensions along which an index may differ."""
    source, places = index, range(len(dims_of(index)))
    if isinstance(index.owner, BroadcastOp):
        source, places = index.owner.source, index.owner.places
    return [at for at, dim in zip(places, dims_of(source), strict=True) if dim != ONE]


def _numbers(op: TakeOp, w: GraphWriter, apart: Sequence[int], outer: Sequence[int]) -> SSAValue:
    """Return the row-major number of what is taken, of some dimensions of the source; -1 for what lies outside."""
    dims, whole = dims_of(op.result), dims_of(op.source)
    shape = [dims[axis] for axis in outer]
    number, inside = w.broadcast_to(w.full(0, i64), shape), None
    for axis in apart:
        at, size = op.places[axis], w.size(whole[axis], i64)
        place = w.iota(shape, outer.index(at), i64) if isinstance(at, int) else w.cast(_along(w, at, outer), i64)
        number = w.apply("add", w.apply("mul", number, size), place)
        if not isinstance(at, int):
            fits = w.apply("and", w.apply("ge", place, 0), w.apply("lt", place, size))
            inside = fits if inside is None else w.apply("and", inside, fits)
    return number if inside is None else w.apply("select", inside, number, -1)


def _along(w: GraphWriter, index: SSAValue, outer: Sequence[int]) -> SSAValue:
    """Return an index along those dimensions alone of which it may differ along no other."""
    dims = dims_of(index)
    thin = [dims[axis] if axis in outer else ONE for axis in range(len(dims))]
    if isinstance(index.owner, BroadcastOp):
        source, own = index.owner.source, [ONE] * len(dims)
        for at, dim in zip(index.owner.places, dims_of(source), strict=True):
            own[at] = dim
        index = w.broadcast_to(w.reshape(source, own), thin)
    return w.without(index, [axis for axis in range(len(dims)) if axis not in outer])


@pull_back.register
def _(op: AddRowsOp, w: GraphWriter, cotangent: SSAValue) -> Cotangents:
    return [w.take(cotangent, [w.with_ones(op.index, [1]), 1], dims_of(op.source)), None]


@push_forward.register
def _(op: AddRowsOp, w: GraphWriter, tangents: Sequence[SSAValue | None]) -> SSAValue | None:
    return None if tangents[0] is None else w.again(op, [tangents[0], op.index])


def _spread(w: GraphWriter, op: ReduceOp, value: SSAValue) -> SSAValue:
    """Return what belongs to a reduction's result, for each element of its operand."""
    return w.broadcast_to(w.with_ones(value, op.reduced), dims_of(op.source))


def _extreme_shares(op: ReduceOp, w: GraphWriter) -> SSAValue:
    """Return the share of each element in the extreme of its row: equal ones have equal shares, as in PyTorch."""
    chosen = w.apply("eq", op.source, _spread(w, op, op.result))
    ones = w.apply("select", chosen, 1.0, 0.0, dtype=array_type(op.source).dtype)
    return w.apply("div", ones, _spread(w, op, w.reduce("sum", ones, op.reduced)))


@pull_back.register
def _(op: PlaceOp, w: GraphWriter, cotangent: SSAValue) -> Cotangents:
    return [w.slice(cotangent, op.first, op.apart, dims_of(op.source))]


@pull_back.register
def _(op: ConcatOp, w: GraphWriter, cotangent: SSAValue) -> Cotangents:
    axis, rank, at = op.axis.data, array_type(op.result).rank, ZERO
    parts: list[SSAValue | None] = []
    for source in op.sources:
        starts = [at if other == axis else ZERO for other in range(rank)]
        parts.append(w.slice(cotangent, starts, [1] * rank, dims_of(source)))
        at = at + dims_of(source)[axis]
    return parts


@push_forward.register
def _(op: ConcatOp, w: GraphWriter, tangents: Sequence[SSAValue | None]) -> SSAValue | None:
    pairs = zip(op.sources, tangents, strict=True)
    return w.concat([w.zeros_like(source) if one is None else one for source, one in pairs], op.axis.data)


@pull_back.register
def _(op: AliasOp, w: GraphWriter, cotangent: SSAValue) -> Cotangents:
    return [cotangent]


@push_forward.register
def _(op: AliasOp, w: GraphWriter, tangents: Sequence[SSAValue | None]) -> SSAValue | None:
    return tangents[0]


@pull_back.register
def _(op: StopOp, w: GraphWriter, cotangent: SSAValue) -> Cotangents:
    return [None]


@push_forward.register
def _(op: StopOp, w: GraphWriter, tangents: Sequence[SSAValue | None]) -> SSAValue | None:
    return None


@pull_back.register
def _(op: ReduceOp, w: GraphWriter, cotangent: SSAValue) -> Cotangents:
    if not is_smooth(op.source):
        return [None]
    spread = _spread(w, op, cotangent)
    if op.fn.data == "sum":
        return [spread]
    if op.fn.data in ("max", "min"):
        return [w.apply("mul", spread, _extreme_shares(op, w))]
    raise no_adjoint(op, f"a reduction by {op.fn.data}")


@push_forward.register
def _(op: ReduceOp, w: GraphWriter, tangents: Sequence[SSAValue | None]) -> SSAValue | None:
    (tangent,) = tangents
    if tangent is None or not is_smooth(op.source):
        return None
    if op.fn.data == "sum":
        return w.reduce("sum", tangent, op.reduced)
    if op.fn.data in ("max", "min"):
        return w.reduce("sum", w.apply("mul", tangent, _extreme_shares(op, w)), op.reduced)
    raise no_adjoint(op, f"a reduction by {op.fn.data}")


def _turned(w: GraphWriter, value: SSAValue) -> SSAValue:
    rank = len(dims_of(value))
    return w.transpose(value, [*range(rank - 2), rank - 1, rank - 2])


@pull_back.register
def _(op: ContractOp, w: GraphWriter, cotangent: SSAValue) -> Cotangents:
    left = w.contract(cotangent, _turned(w, op.right))
    return [left, w.contract(_turned(w, op.left), cotangent)]


@push_forward.register
def _(op: ContractOp, w: GraphWriter, tangents: Sequence[SSAValue | None]) -> SSAValue | None:
    left, right = tangents
    parts = [] if left is None else [w.contract(left, op.right)]
    parts += [] if right is None else [w.contract(op.left, right)]
    return added(w, parts)
