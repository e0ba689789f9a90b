"""What conversions mean."""

from __future__ import annotations

import numpy as np

from tessera.tools.fuzz.meaning_values import FORMATS, NUMPY, Array, Val, either, nearest, rounded
from tessera.tools.fuzz.types import bits, int_range, is_float, is_int


def cast(value: Val, dtype: str, saturate: bool = False) -> Val:
    """Return a value in another dtype: float to float rounds to nearest, float to integer truncates and saturates."""
    source = value.dtype
    if source == dtype:
        return value
    if is_float(source):
        if is_float(dtype):
            return _to_float(value, dtype, saturate)
        return _to_bool(value) if dtype == "bool" else _to_int(value, dtype)
    if dtype == "bool":
        return Val("bool", value.data != 0, None, value.known)
    if is_int(dtype):
        return Val(dtype, value.data.astype(NUMPY[dtype]), None, value.known)
    data = int_to_float(value.data, dtype)
    if saturate:  # by the integer: in a format without infinities, rounding what is beyond gives NaN
        limit = FORMATS[dtype].largest
        data = np.where(value.data > limit, limit, np.where(value.data < -limit, -limit, data))
    return Val(dtype, data, None, value.known)


def _to_float(value: Val, dtype: str, saturate: bool) -> Val:
    data, limit = value.data, FORMATS[dtype].largest
    known = value.known
    if saturate:
        data = np.clip(data, -limit, limit)
    return rounded(dtype, data, value.err, known)


def int_to_float(data: Array, dtype: str) -> Array:
    """Round integers to a float format once: those beyond 53 bits keep what decides the rounding."""
    if bits(dtype) == 64 or data.dtype.itemsize < 8:
        return nearest(data.astype(np.float64), dtype)
    if dtype == "f32":
        return data.astype(np.float32).astype(np.float64)
    small = (data <= 2**53) if data.dtype.kind == "u" else (data <= 2**53) & (data >= -(2**53))
    # Two parts: the upper one is exact in float64, the lower one only says on which side of a tie the number lies.
    upper = data & ~np.asarray(0xFFF, data.dtype)
    below = (data & np.asarray(0xFFF, data.dtype)) != 0
    wide = upper.astype(np.float64)
    wide = np.where(below, np.nextafter(wide, np.inf), wide)
    return nearest(np.where(small, data.astype(np.float64), wide), dtype)


def _to_bool(value: Val) -> Val:
    result = value.data != 0
    if value.err is None:
        return Val("bool", result, None, value.known)
    sure = (value.err == 0) | (np.abs(value.data) > value.err)
    return Val("bool", result, None, either(value.known, sure))


def _to_int(value: Val, dtype: str) -> Val:
    result = truncated(value.data, dtype)
    if value.err is None:
        return Val(dtype, result, None, value.known)
    low, high = truncated(value.data - value.err, dtype), truncated(value.data + value.err, dtype)
    sure = (value.err == 0) | ((low == high) & ~np.isnan(value.data))
    return Val(dtype, result, None, either(value.known, sure))


def truncated(x: Array, dtype: str) -> Array:
    """Truncate float64 numbers to an integer dtype; what is out of range saturates, NaN gives 0."""
    low, high = int_range(dtype)
    inside = np.trunc(np.where(np.isnan(x), 0.0, x))
    above, below = inside >= float(high + 1), inside < float(low)
    safe = np.where(above | below, 0.0, inside).astype(NUMPY[dtype])
    top, bottom = NUMPY[dtype].type(high), NUMPY[dtype].type(low)
    return np.where(above, top, np.where(below, bottom, safe))


def bitcast(value: Val, dtype: str) -> Val:
    """Return the bits as another dtype; of a float that is NaN, zero or not determined, nobody promises them."""
    known = value.known
    if is_float(value.dtype):
        codes = _codes(value.data, value.dtype)
        known = either(known, (value.errors() == 0) & (value.data != 0) & ~np.isnan(value.data))
    else:
        codes = np.ascontiguousarray(value.data).view(f"u{value.data.dtype.itemsize}").reshape(value.shape)
    if is_float(dtype):
        return Val(dtype, _numbers(codes, dtype), None, known)
    return Val(dtype, codes.view(NUMPY[dtype]), None, known)


def _codes(data: Array, dtype: str) -> Array:
    """Return the bits of numbers of a float format as unsigned integers."""
    if dtype == "bf16":  # the upper half of an f32
        return np.asarray((data.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16))
    return data.astype(f"f{bits(dtype) // 8}").view(f"u{bits(dtype) // 8}")


def _numbers(codes: Array, dtype: str) -> Array:
    """Return what bits mean in a float format."""
    if dtype == "bf16":
        return (codes.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    return codes.view(f"f{bits(dtype) // 8}").astype(np.float64)
