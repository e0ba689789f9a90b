"""What reductions, scans, products and random numbers mean.

Sums are taken in any order: where every partial sum is a multiple of one power of two and fits the mantissa, all orders
give the same and the result is exact; elsewhere each addition counts a rounding.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tessera.tools.fuzz.meaning_casts import cast
from tessera.tools.fuzz.meaning_values import (
    FORMATS,
    NUMPY,
    Array,
    Val,
    either,
    every,
    exact_steps,
    nearest,
    rounded,
    significant,
)
from tessera.tools.fuzz.types import is_float

_UFUNCS: Final[dict[str, Any]] = {
    "sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum, "any": np.logical_or,
    "all": np.logical_and,
}  # fmt: skip


def reduce(op: str, x: Val, axis: int | None, wide: str) -> Val:
    """Reduce a value, converted to the accumulation type `wide` first."""
    value = cast(x, wide) if op not in ("any", "all") else x
    if axis is None:
        value = value.moved(lambda data: data.reshape(-1))
        axis = 0
    return _combine(op, value, axis, False)


def scan(op: str, x: Val, axis: int, reverse: bool, wide: str) -> Val:
    """Return running reductions."""
    value = cast(x, wide) if op not in ("any", "all") else x
    if reverse:
        value = value.moved(lambda data: np.flip(data, axis))
    result = _combine(op, value, axis, True)
    return result.moved(lambda data: np.flip(data, axis)) if reverse else result


def _fold(function: np.ufunc, data: Array, axis: int, running: bool, dtype: Any = None) -> Array:
    method = function.accumulate if running else function.reduce
    return np.asarray(method(data, axis=axis) if dtype is None else method(data, axis=axis, dtype=dtype))


def _combine(op: str, value: Val, axis: int, running: bool) -> Val:
    known = None if value.known is None else _fold(np.logical_and, value.known, axis, running)
    dtype = value.dtype
    with np.errstate(all="ignore"):
        if not is_float(dtype):
            return Val(dtype, _fold(_UFUNCS[op], value.data, axis, running, NUMPY[dtype]), None, known)
        if op in ("max", "min"):
            result = _fold(_UFUNCS[op], value.data, axis, running)
            err = None if value.err is None else _fold(np.maximum, value.err, axis, running)
            return Val(dtype, result, err if err is None else np.where(np.isfinite(result), err, 0.0), known)
        if op == "sum":
            return _sum(value, axis, running, known)
        return _prod(value, axis, running, known)


def _sum(value: Val, axis: int, running: bool, known: Array | None) -> Val:
    data, form = value.data, FORMATS[value.dtype]
    total = _fold(np.add, data, axis, running)
    size = _fold(np.add, np.abs(data), axis, running)
    step = _fold(np.minimum, exact_steps(data), axis, running)
    exact = (size <= step * 2.0 ** (form.mantissa + 1)) | ~np.isfinite(size)
    err = np.where(exact, 0.0, data.shape[axis] * 2 * form.unit * size + form.tiny)
    if value.err is not None:
        err = err + _fold(np.add, value.err, axis, running)
    overflow = np.isfinite(size) & (size > form.largest)
    if overflow.any():
        known, total, err = (
            either(known, ~overflow),
            np.where(overflow, 0.0, total),
            np.where(overflow, 0.0, err),
        )
    return rounded(value.dtype, total, err if np.any(err) else None, known)


def _prod(value: Val, axis: int, running: bool, known: Array | None) -> Val:
    data, form = value.data, FORMATS[value.dtype]
    total = _fold(np.multiply, data, axis, running)
    places = _fold(np.add, significant(data), axis, running)
    top = _fold(np.multiply, np.maximum(np.abs(data), 1.0), axis, running)
    bottom = _fold(np.multiply, np.where(data == 0, 1.0, np.minimum(np.abs(data), 1.0)), axis, running)
    exact = places <= form.mantissa + 1
    err = np.where(exact, 0.0, data.shape[axis] * 2 * form.unit * np.abs(total))
    if value.err is not None:
        reach = _fold(np.multiply, np.abs(data) + value.err, axis, running)
        err = err + np.where(reach > np.abs(total), reach - np.abs(total), 0.0) * 1.01
    # In between, another order may overflow or lose bits below the smallest normal number.
    lost = ~(top < form.largest) | ~(bottom > form.normal)
    if lost.any():
        known, total, err = either(known, ~lost), np.where(lost, 0.0, total), np.where(lost, 0.0, err)
    return rounded(value.dtype, total, err if np.any(err) else None, known)


def mma(a: Val, b: Val, acc: Val | None, accumulator: str, compute: str) -> Val:
    """Return `acc + a @ b` in the accumulator's type."""
    with np.errstate(all="ignore"):
        known = _product_mask(a, b)
        if not is_float(a.dtype):
            total = a.data.astype(np.int64) @ b.data.astype(np.int64)
            if acc is not None:
                total = total + acc.data
                known = either(known, acc.known)
            return Val(accumulator, total.astype(NUMPY[accumulator]), None, known)
        return _float_product(a, b, acc, accumulator, compute, known)


def _product_mask(a: Val, b: Val) -> Array | None:
    if a.known is None and b.known is None:
        return None
    return every(a.mask(), 1)[:, None] & every(b.mask(), 0)[None, :]


def _float_product(
    a: Val, b: Val, acc: Val | None, accumulator: str, compute: str, known: Array | None
) -> Val:
    form, inner = FORMATS[accumulator], FORMATS[compute if compute == "tf32" else a.dtype]
    depth = a.shape[1]
    start = np.zeros((a.shape[0], b.shape[1])) if acc is None else acc.data
    finite = (
        every(np.isfinite(a.data), 1)[:, None] & every(np.isfinite(b.data), 0)[None, :] & np.isfinite(start)
    )
    left, right = np.nan_to_num(a.data, posinf=0, neginf=0), np.nan_to_num(b.data, posinf=0, neginf=0)
    total = start + left @ right
    size = np.abs(start) + np.abs(left) @ np.abs(right)
    step = exact_steps(left).min(1)[:, None] * exact_steps(right).min(0)[None, :]
    step = np.minimum(np.where(np.isnan(step), np.inf, step), exact_steps(start))
    exact = size <= step * 2.0 ** (form.mantissa + 1)
    err = np.where(exact, 0.0, (2 * depth + 6) * 2 * form.unit * size + form.tiny)
    if compute == "tf32":
        fits = (
            every(nearest(left, "tf32") == left, 1)[:, None]
            & every(nearest(right, "tf32") == right, 0)[None, :]
        )
        err = err + np.where(fits, 0.0, 3 * inner.unit * size)
    if a.err is not None or b.err is not None:
        err = err + np.abs(left) @ b.errors() + a.errors() @ np.abs(right) + a.errors() @ b.errors()
    if acc is not None:
        err, known = err + acc.errors(), either(known, acc.known)
    # Instructions that take subnormal numbers for zero, and what an infinity meets beyond the tensor's edge.
    lost = (
        ~finite
        | (size + err > form.largest / 2)
        | _subnormal(a, b)
        | (_tiny(start, form.normal) & (size > 0))
    )
    if lost.any():
        known, total, err = either(known, ~lost), np.where(lost, 0.0, total), np.where(lost, 0.0, err)
    return rounded(accumulator, total, err if np.any(err) else None, known)


def _tiny(x: Array, normal: float) -> Array:
    return (x != 0) & (np.abs(x) < normal)


def _subnormal(a: Val, b: Val) -> Array:
    rows = ~every(~_tiny(a.data, max(FORMATS[a.dtype].normal, 2.0**-126)), 1)
    columns = ~every(~_tiny(b.data, max(FORMATS[b.dtype].normal, 2.0**-126)), 0)
    return rows[:, None] | columns[None, :]


# Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.


def philox(seed: int, counter: Array, word: int) -> Array:
    """Return one of four words of 32 random bits for each 64-bit counter."""
    low = np.uint64(0xFFFFFFFF)
    wide = counter.astype(np.int64).astype(np.uint64)
    words = [wide & low, wide >> np.uint64(32), np.zeros_like(wide), np.zeros_like(wide)]
    keys = [seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF]
    for _ in range(10):
        first, second = np.uint64(0xD2511F53) * words[0], np.uint64(0xCD9E8D57) * words[2]
        words = [
            (second >> np.uint64(32)) ^ words[1] ^ np.uint64(keys[0]), second & low,
            (first >> np.uint64(32)) ^ words[3] ^ np.uint64(keys[1]), first & low,
        ]  # fmt: skip
        keys = [(keys[0] + 0x9E3779B9) & 0xFFFFFFFF, (keys[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return words[word].astype(np.uint32)
