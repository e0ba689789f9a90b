"""Exact conversions between dtypes on NumPy values."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from tessera.numerics.dtypes import DType, f64

Array = npt.NDArray[Any]


def convert(value: Any, source: DType, target: DType, saturate: bool = False) -> Any:
    """Convert NumPy scalars or arrays between dtypes, as `tessera_tile.cast` says.

    Args:
        value: NumPy scalar or array of dtype `source`.
        source: its dtype.
        target: the dtype wanted.
        saturate: clamp to the target's largest finite value instead of overflowing.

    Returns:
        A NumPy scalar or array of the same shape.
    """
    source, target = source.storage, target.storage
    if source == target:
        return value
    with np.errstate(all="ignore"):
        return np.asarray(_convert(np.asarray(value), source, target, saturate))[()]


def nearest(value: float, target: DType) -> float:
    """Return the number of a float dtype that is nearest to a Python number; infinity or NaN beyond its range."""
    return float(convert(float(value), f64, target))


def _convert(value: Array, source: DType, target: DType, saturate: bool) -> Array:
    if target.kind == "bool":
        return (value.astype(np.float64) if source.is_float else value) != 0
    if not target.is_float:
        return _truncate(value.astype(np.float64), target) if source.is_float else value.astype(target.numpy())
    if saturate:
        limit = largest(target)
        wide = value.astype(np.float64) if target.bits == 64 else _widened(value, source)
        clipped = np.clip(wide, -limit, limit)
        return round_once(clipped, target) if target.bits <= 32 else clipped
    if target.bits >= 32:
        return value.astype(target.numpy())
    if source.is_float and source.bits <= 32:
        return value.astype(np.float32).astype(target.numpy())
    return round_once(_widened(value, source), target)


def _widened(value: Array, source: DType) -> Array:
    """Return f64 values that round to any narrower float type as `value` itself would."""
    if source.is_float or source.bits < 64:
        return value.astype(np.float64)
    size = np.abs(value).astype(np.uint64)  # the least i64 wraps to its own magnitude
    # Beyond 53 bits: keep the top ones and fold the others into a sticky bit far below where it rounds.
    low = np.uint64(0x7FF)
    sticky = (size & ~low) | np.where(size & low, 0x800, 0).astype(np.uint64)
    folded = np.where(size >> np.uint64(53), sticky, size).astype(np.float64)
    return np.where(value < 0, -folded, folded)


def round_once(value: Array, target: DType) -> Array:
    """Round f64 values to a float type of at most 32 bits, to nearest even, once.

    NumPy and ml_dtypes go from f64 to the narrow types through f32 and so round twice; rounding to odd in
    between makes the second rounding right.

    Source: Boldo and Melquiond, "When double rounding is odd", IMACS 2005.
    """
    nearest = value.astype(np.float32)
    if target.name == "f32":
        return nearest
    back = nearest.astype(np.float64)
    toward = np.nextafter(nearest, np.where(value > back, np.inf, -np.inf).astype(np.float32))
    inexact = (back != value) & np.isfinite(value) & ((nearest.view(np.uint32) & np.uint32(1)) == 0)
    return np.where(inexact, toward, nearest).astype(target.numpy())


def largest(target: DType) -> float:
    """Return the largest finite value of a float dtype."""
    finfo: Any = ml_dtypes.finfo  # its stub leaves the narrow types out
    return float(finfo(target.numpy()).max)


def _truncate(value: Array, target: DType) -> Array:
    info = np.iinfo(target.numpy())
    above, below = value >= float(info.max) + (target.bits < 64), value <= float(info.min)
    inside = np.where(above | below | np.isnan(value), 0.0, np.trunc(value)).astype(target.numpy())
    return np.where(above, info.max, np.where(below, info.min, inside)).astype(target.numpy())
