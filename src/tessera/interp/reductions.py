"""Reductions and scans.

Sums and products of f32 are accumulated in f64 and rounded once: the reference that every reduction order
approximates. Combiners of the user's own are applied to neighbours, then to neighbouring results, and so on.

Under `strict`, float sums and products and combiners take the order of `numerics.order`, each step rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from xdsl.ir import Block

from tessera.interp.casts import to_f32
from tessera.interp.elementwise import apply
from tessera.interp.machine import Machine, handles
from tessera.interp.values import Array, dtype_at
from tessera.ir.tile.reduce import ReduceByOp, ReduceOp, ScanByOp, ScanOp
from tessera.numerics import dtypes
from tessera.numerics.conversions import convert
from tessera.numerics.dtypes import DType
from tessera.numerics.functions import COMBINE
from tessera.numerics.order import is_ordered

Fold = Callable[[Sequence[Array], Sequence[Array]], list[Array]]
"""Combines what stands before with what stands behind, one array a tile."""

_UFUNCS: dict[str, np.ufunc] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "any": np.logical_or,
    "all": np.logical_and,
}


def _prepared(source: Array, fn: str, dtype: DType) -> tuple[Array, DType]:
    if fn in ("any", "all"):
        return source.astype(np.float64) != 0 if dtype.is_float else source != 0, dtypes.boolean
    if fn in ("sum", "prod") and dtype.is_float:
        return source.astype(np.float64), dtypes.f64
    return to_f32(source, dtype), dtypes.f32 if dtype.is_float and dtype.bits < 32 else dtype


@handles(ReduceOp)
def _reduce(op: ReduceOp, machine: Machine) -> Any:
    fn, dtype = op.fn.data, dtype_at(op.source.type)
    if is_ordered(machine.profile, fn, dtype.is_float):
        return _halved([machine.get(op.source)], op.axis.data, _fold(fn, dtype))[0]
    values, inner = _prepared(machine.get(op.source), fn, dtype)
    with np.errstate(all="ignore"):
        return convert(_with_signs(fn, values, np.ufunc.reduce, op.axis.data, inner), inner, dtype)


@handles(ScanOp)
def _scan(op: ScanOp, machine: Machine) -> Any:
    fn, dtype, axis = op.fn.data, dtype_at(op.source.type), op.axis.data
    if is_ordered(machine.profile, fn, dtype.is_float):
        return _running([machine.get(op.source)], axis, op.reverse is not None, _fold(fn, dtype))[0]
    values, inner = _prepared(machine.get(op.source), fn, dtype)
    if op.reverse is not None:
        values = np.flip(values, axis)
    with np.errstate(all="ignore"):
        result = convert(_with_signs(fn, values, np.ufunc.accumulate, axis, inner), inner, dtype)
    return np.flip(result, axis) if op.reverse is not None else result


def _with_signs(fn: str, values: Array, way: Callable[..., Array], axis: int, dtype: DType) -> Array:
    """Return what a function makes of values along an axis; of zeros +0 is the larger, which NumPy leaves open.

    Args:
        fn: the function.
        values: the values.
        way: `reduce` or `accumulate`.
        axis: the axis.
        dtype: what is computed in.
    """
    result = way(_UFUNCS[fn], values, axis=axis, dtype=dtype.numpy())
    if fn not in ("max", "min") or values.dtype.kind != "f":
        return result
    negative = np.signbit(values)
    wins = way(np.logical_or, (values == 0) & (negative if fn == "min" else ~negative), axis=axis)
    zero = np.copysign(result.dtype.type(0), np.where(wins == (fn == "min"), -1, 1).astype(result.dtype))
    return np.where(result == 0, zero, result)


def _combined(machine: Machine, combiner: Block, left: Sequence[Array], right: Sequence[Array]) -> list[Array]:
    """Apply a combiner to many elements at once."""
    end = machine.run(combiner, [*left, *right])
    assert end is not None
    return [np.broadcast_to(value, left[0].shape) for value in machine.all(end.operands)]


def _taken(values: Sequence[Array], axis: int, places: slice) -> list[Array]:
    chosen = (slice(None),) * axis + (places,)
    return [value[chosen] for value in values]


def _fold(fn: str, dtype: DType) -> Fold:
    return lambda left, right: [apply(COMBINE[fn], (left[0], right[0]), dtype)]


def _halved(values: list[Array], axis: int, fold: Fold) -> list[Array]:
    """Combine element i with element i + n/2, for n the next power of two, until one is left."""
    while (size := values[0].shape[axis]) > 1:
        half = (1 << (size - 1).bit_length()) // 2
        both = fold(_taken(values, axis, slice(0, size - half)), _taken(values, axis, slice(half, size)))
        rest = _taken(values, axis, slice(size - half, half))
        values = [np.concatenate(parts, axis) for parts in zip(both, rest, strict=True)]
    return [value.take(0, axis) for value in values]


def _joined(size: int, length: int, reverse: bool) -> tuple[list[int], list[int]]:
    """Return the places that take in another block of some length, and where the block's total is."""
    if reverse:
        at = [place for place in range(size) if not place & length and (place | length - 1) < size - 1]
        return at, [(place | length - 1) + 1 for place in at]
    at = [place for place in range(size) if place & length]
    return at, [(place & -length) - 1 for place in at]


def _running(values: Sequence[Array], axis: int, reverse: bool, fold: Fold) -> list[Array]:
    """Join each two blocks of 2^b elements, for b from 0 up: the second takes in the first's total, or the reverse."""
    results = [np.moveaxis(value, axis, 0).copy() for value in values]
    length, size = 1, results[0].shape[0]
    while length < size:
        at, total = _joined(size, length, reverse)
        joined = fold([result[total] for result in results], [result[at] for result in results])
        for result, value in zip(results, joined, strict=True):
            result[at] = value
        length *= 2
    return [np.moveaxis(result, 0, axis) for result in results]


@handles(ReduceByOp)
def _reduce_by(op: ReduceByOp, machine: Machine) -> Any:
    axis, values = op.axis.data, list(machine.all(op.sources))
    if machine.profile == "strict":
        found = _halved(values, axis, lambda left, right: _combined(machine, op.combiner.block, left, right))
        return found[0] if len(found) == 1 else tuple(found)
    while (size := values[0].shape[axis]) > 1:
        pairs = [_taken(values, axis, slice(first, size - size % 2, 2)) for first in (0, 1)]
        rest = _taken(values, axis, slice(size - size % 2, size))
        both = zip(_combined(machine, op.combiner.block, *pairs), rest, strict=True)
        values = [np.concatenate(parts, axis) for parts in both]
    results = tuple(value.take(0, axis) for value in values)
    return results[0] if len(results) == 1 else results


@handles(ScanByOp)
def _scan_by(op: ScanByOp, machine: Machine) -> Any:
    axis, values = op.axis.data, list(machine.all(op.sources))
    if machine.profile == "strict":
        block, reverse = op.combiner.block, op.reverse is not None
        found = _running(values, axis, reverse, lambda left, right: _combined(machine, block, left, right))
        return found[0] if len(found) == 1 else tuple(found)
    if op.reverse is not None:
        values = [np.flip(value, axis) for value in values]
    step, size = 1, values[0].shape[axis]
    while step < size:
        before, after = _taken(values, axis, slice(0, size - step)), _taken(values, axis, slice(step, size))
        combined = _combined(machine, op.combiner.block, before, after)
        first = _taken(values, axis, slice(0, step))
        values = [np.concatenate(parts, axis) for parts in zip(first, combined, strict=True)]
        step *= 2
    if op.reverse is not None:
        values = [np.flip(value, axis) for value in values]
    return values[0] if len(values) == 1 else tuple(values)
