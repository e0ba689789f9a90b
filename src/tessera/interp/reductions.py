"""Reductions and scans.

Sums and products of f32 are accumulated in f64 and rounded once: the reference that every reduction order
approximates.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.interp.casts import convert, to_f32
from tessera.interp.machine import Machine, handles
from tessera.interp.values import Array, dtype_at
from tessera.ir.tile.reduce import ReduceOp, ScanOp
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
