"""Reductions and scans.

Sums and products of f32 are accumulated in f64 and rounded once: the reference that every reduction order
approximates. Combiners of the user's own are applied to neighbours, then to neighbouring results, and so on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from xdsl.ir import Block

from tessera.interp.casts import convert, to_f32
from tessera.interp.machine import Machine, handles
from tessera.interp.values import Array, dtype_at
from tessera.ir.tile.reduce import ReduceByOp, ReduceOp, ScanByOp, ScanOp
from tessera.numerics import dtypes
from tessera.numerics.dtypes import DType

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
    values, inner = _prepared(machine.get(op.source), fn, dtype)
    with np.errstate(all="ignore"):
        return convert(_UFUNCS[fn].reduce(values, axis=op.axis.data, dtype=inner.numpy()), inner, dtype)


@handles(ScanOp)
def _scan(op: ScanOp, machine: Machine) -> Any:
    fn, dtype, axis = op.fn.data, dtype_at(op.source.type), op.axis.data
    values, inner = _prepared(machine.get(op.source), fn, dtype)
    if op.reverse is not None:
        values = np.flip(values, axis)
    with np.errstate(all="ignore"):
        result = convert(_UFUNCS[fn].accumulate(values, axis=axis, dtype=inner.numpy()), inner, dtype)
    return np.flip(result, axis) if op.reverse is not None else result


def _combined(machine: Machine, combiner: Block, left: Sequence[Array], right: Sequence[Array]) -> list[Array]:
    """Apply a combiner to many elements at once."""
    end = machine.run(combiner, [*left, *right])
    assert end is not None
    return [np.broadcast_to(value, left[0].shape) for value in machine.all(end.operands)]


def _taken(values: Sequence[Array], axis: int, places: slice) -> list[Array]:
    chosen = (slice(None),) * axis + (places,)
    return [value[chosen] for value in values]


@handles(ReduceByOp)
def _reduce_by(op: ReduceByOp, machine: Machine) -> Any:
    axis, values = op.axis.data, list(machine.all(op.sources))
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
