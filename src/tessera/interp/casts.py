"""Casts, and roundings to tf32."""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.interp.machine import Machine, handles
from tessera.interp.values import Array, dtype_at
from tessera.ir.tile.elementwise import CastOp, RoundTf32Op
from tessera.numerics import dtypes
from tessera.numerics.conversions import convert
from tessera.numerics.dtypes import DType


@handles(RoundTf32Op)
def _round_tf32(op: RoundTf32Op, machine: Machine) -> Any:
    return tf32(machine.get(op.source))


@handles(CastOp)
def _cast(op: CastOp, machine: Machine) -> Any:
    return convert(machine.get(op.source), dtype_at(op.source.type), dtype_at(op.result.type), op.saturate is not None)


def to_f32(value: Any, dtype: DType) -> Any:
    """Return a float value in f32, or as it is when it is already that wide or wider."""
    return value.astype(np.float32) if dtype.is_float and dtype.bits < 32 else value


def tf32(value: Array) -> Array:
    """Round f32 values to tf32's 10 mantissa bits, to nearest even, keeping them in f32."""
    bits = value.astype(np.float32).view(np.uint32)
    drop = np.uint32(dtypes.f32.mantissa - dtypes.tf32.mantissa)
    half = np.uint32((1 << int(drop - 1)) - 1)
    rounded = (bits + half + ((bits >> drop) & np.uint32(1))) & ~np.uint32((1 << int(drop)) - 1)
    return np.where(np.isfinite(value), rounded.view(np.float32), value).astype(np.float32)


def cut_to_tf32(value: Array) -> Array:
    """Drop the bits of f32 values that tf32 lacks, as matrix units do with what they are given."""
    bits = value.astype(np.float32).view(np.uint32)
    return (bits & ~np.uint32((1 << (dtypes.f32.mantissa - dtypes.tf32.mantissa)) - 1)).view(np.float32)
