"""What reductions, scans, products and random numbers mean.

Sums are taken in any order: where every partial sum is a multiple of one power of two and fits the mantissa, all orders
give the same and the result is exact; elsewhere each addition counts a rounding.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np

from tessera.tools.fuzz.meaning_casts import cast
from tessera.tools.fuzz.meaning_values import (
    FORMATS,
    NUMPY,
    Array,
    Sums,
    Val,
    either,
    every,
    nearest,
    possible_steps,
    rounded,
    significant,
)
from tessera.tools.fuzz.types import Type, is_float

_UFUNCS: Final[dict[str, Any]] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "any": np.logical_or,
    "all": np.logical_and,
}


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


def sort(x: Val, axis: int, descending: bool, places: bool) -> Val:
    """Return the elements in order, NaNs largest, or where they come from: of equal ones the first comes first."""
    data = np.flip(x.data, axis) if descending else x.data
    order = np.argsort(data, axis, kind="stable")
    if descending:
        order = np.flip(data.shape[axis] - 1 - order, axis)
    known = np.broadcast_to(x.mask().all(axis, keepdims=True), data.shape)
    err = np.broadcast_to(x.errors().max(axis, keepdims=True), data.shape)
    if places:  # elements that are known by halves have no order
        return Val("i32", order.astype(np.int32), None, known & (err == 0.0))
    return Val(x.dtype, np.take_along_axis(x.data, order, axis), None if x.err is None else err, known)


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
    """Sum in any order: unknown where one order overflows and another does not.

    The order decides nothing where there is NaN or infinities of both signs, where there is an infinity and no sum
    overflows to the other one, and where the sum overflows whatever the order.
    """
    data, form, errors = value.data, FORMATS[value.dtype], value.errors()
    total = _fold(np.add, data, axis, running)
    size = _fold(np.add, np.abs(data), axis, running)
    step = _fold(np.minimum, np.where(np.isfinite(data), possible_steps(value), np.inf), axis, running)

    def sums(x: Array) -> Array:
        return _fold(np.add, np.maximum(x, 0.0), axis, running)

    def found(where: Array) -> Array:
        return _fold(np.logical_or, where & np.isfinite(errors), axis, running)

    # How far sums of some elements reach, scaled so that float64 holds them.
    scale = 2.0**-64
    finite = np.where(np.isfinite(data), data, 0.0) * scale
    reach = np.where(np.isfinite(errors), errors, np.inf) * scale
    up, down, limit = sums(finite + reach), sums(reach - finite), form.largest * scale
    exact = np.maximum(up, down) < step * scale * 2.0 ** (form.mantissa + 1)  # at the limit one may have been rounded
    slack = np.where(exact, 0.0, data.shape[axis] * 2 * form.unit)
    above, below = up * (1 + slack) > limit, down * (1 + slack) > limit
    least = limit * (1 + 2 * form.unit) + slack * (limit + up + down)
    beyond, under = sums(finite - reach) - down > least, sums(-finite - reach) - up > least
    plus, minus, nan = found(data == np.inf), found(data == -np.inf), found(np.isnan(data))
    decided = nan | (plus & minus) | (~below & (plus | (beyond & ~minus))) | (~above & (minus | (under & ~plus)))
    lost = (above | below) & ~decided
    err = np.where(exact, 0.0, data.shape[axis] * 2 * form.unit * size + form.tiny)
    err = err + _fold(np.add, errors, axis, running)
    err = np.where(np.isfinite(total), err, 0.0)
    if lost.any():
        known, total, err = either(known, ~lost), np.where(lost, 0.0, total), np.where(lost, 0.0, err)
    return rounded(value.dtype, total, err if np.any(err) else None, known)


def _prod(value: Val, axis: int, running: bool, known: Array | None) -> Val:
    data, form = value.data, FORMATS[value.dtype]
    total = _fold(np.multiply, data, axis, running)
    places = _fold(np.add, np.where(value.errors() > 0, form.mantissa + 1, significant(data)), axis, running)
    top = _fold(np.multiply, np.maximum(np.abs(data), 1.0), axis, running)
    bottom = _fold(np.multiply, np.where(data == 0, 1.0, np.minimum(np.abs(data), 1.0)), axis, running)
    exact = places <= form.mantissa + 1
    err = np.where(exact, 0.0, data.shape[axis] * 2 * form.unit * np.abs(total))
    if value.err is not None:
        reach = _fold(np.multiply, np.abs(data) + value.err, axis, running)
        err = err + np.where(reach > np.abs(total), reach - np.abs(total), 0.0) * 1.01
    # In between, another order may overflow or lose bits below the smallest normal number.
    nan = _fold(np.logical_or, np.isnan(data), axis, running)
    lost = (~(top < form.largest) | ~(bottom > form.normal)) & ~nan
    err = np.where(nan, 0.0, err)
    if lost.any():
        known, total, err = either(known, ~lost), np.where(lost, 0.0, total), np.where(lost, 0.0, err)
    return rounded(value.dtype, total, err if np.any(err) else None, known)


def batch(a: Val, b: Val, acc: Val | None, type_: Type, compute: str) -> Val:
    """Return `acc + a @ b`, or that of each member of a batch."""
    if len(type_.shape) == 2:
        return mma(a, b, acc, type_.dtype, compute)

    def member(x: Val, number: int) -> Val:
        return x if len(x.shape) == 2 else x.moved(lambda data: data[number % len(data)])

    made = [
        mma(member(a, i), member(b, i), None if acc is None else member(acc, i), type_.dtype, compute)
        for i in range(type_.shape[0])
    ]
    err = None if all(one.err is None for one in made) else np.stack([one.errors() for one in made])
    known = None if all(one.known is None for one in made) else np.stack([one.mask() for one in made])
    return Val(type_.dtype, np.stack([one.data for one in made]), err, known)


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


def _float_product(a: Val, b: Val, acc: Val | None, accumulator: str, compute: str, known: Array | None) -> Val:
    form, inner = FORMATS[accumulator], FORMATS[compute if compute == "tf32" else a.dtype]
    depth = a.shape[1]
    start = np.zeros((a.shape[0], b.shape[1])) if acc is None else acc.data
    left, right, first = (np.nan_to_num(x, posinf=0, neginf=0) for x in (a.data, b.data, start))
    total = first + left @ right
    size = np.abs(first) + np.abs(left) @ np.abs(right)
    off = _product_errors(a, b, acc, left, right)
    step = possible_steps(replace(a, data=left)).min(1)[:, None] * possible_steps(replace(b, data=right)).min(0)
    step = np.where(np.isnan(step), np.inf, step)
    step = np.minimum(step, np.inf if acc is None else possible_steps(replace(acc, data=first)))
    # So many digits matrix units keep of the largest term, too, though they cut off what lies behind: Fasi, Higham,
    # Mikaitis, Pranesh, "Numerical behavior of NVIDIA tensor cores", PeerJ Computer Science 7, 2021.
    exact = size + off < step * 2.0 ** (form.mantissa + 1)
    err = off + np.where(exact, 0.0, (2 * depth + 6) * 2 * form.unit * size + form.tiny)
    # Instructions that take subnormal numbers for zero.
    lost = _subnormal(a, b) | (_tiny(start, form.normal) & (size > 0))
    if compute == "tf32":
        rows, columns = nearest(left, "tf32"), nearest(right, "tf32")
        fits = every(rows == left, 1)[:, None] & every(columns == right, 0)[None, :]
        err = err + np.where(fits, 0.0, 3 * inner.unit * size)
        # What is finite in f32 may be infinite in tf32.
        lost |= ~(every(np.isfinite(rows), 1)[:, None] & every(np.isfinite(columns), 0)[None, :])
    if acc is not None:
        known = either(known, acc.known)
    lost |= ~(size + err <= form.largest / 2)
    if not (np.isfinite(a.data).all() and np.isfinite(b.data).all() and np.isfinite(start).all()):
        special, doubtful = _special_sums(a.data, b.data, start)
        inexact = ~every(a.errors() == 0, 1)[:, None] | ~every(b.errors() == 0, 0)[None, :]
        if acc is not None:
            inexact |= acc.errors() != 0
        lost |= doubtful | ((special != 0) & inexact)
        total, err = np.where(special != 0, special, total), np.where(special != 0, 0.0, err)
    if lost.any():
        known, total, err = either(known, ~lost), np.where(lost, 0.0, total), np.where(lost, 0.0, err)
    result = rounded(accumulator, total, err if np.any(err) else None, known)
    return replace(result, sums=Sums(depth, size, step)) if acc is None else result


def _product_errors(a: Val, b: Val, acc: Val | None, left: Array, right: Array) -> Array:
    """Return what the errors of a product's operands make of its sums, where `left` and `right` are their numbers."""
    err = np.zeros((len(left), right.shape[1])) if acc is None else acc.errors()
    if a.err is None and b.err is None:
        return err
    return err + np.abs(left) @ b.errors() + a.errors() @ np.abs(right) + a.errors() @ b.errors()


def _special_sums(a: Array, b: Array, start: Array) -> tuple[Array, Array]:
    """Return the sums of products that are NaN or infinite, 0 for the others, and where that is not certain.

    What NaN or an infinity meets beyond the tensor's edge is zero, and such products need not be made.
    """

    def any_of(left: Array, right: Array) -> Array:
        return (left.astype(np.float64) @ right.astype(np.float64)) > 0

    def infinite(sign: float) -> Array:
        end = sign * np.inf
        found = any_of(a == end, b > 0) | any_of(a == -end, b < 0)
        return found | any_of(a > 0, b == end) | any_of(a < 0, b == -end) | (start == end)

    plus, minus = infinite(1.0), infinite(-1.0)
    nan = any_of(np.isnan(a), b != 0) | any_of(a != 0, np.isnan(b)) | np.isnan(start) | (plus & minus)
    doubtful = any_of(~np.isfinite(a), b == 0) | any_of(a == 0, ~np.isfinite(b))
    return np.where(nan, np.nan, np.where(plus, np.inf, np.where(minus, -np.inf, 0.0))), doubtful & ~nan


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
            (second >> np.uint64(32)) ^ words[1] ^ np.uint64(keys[0]),
            second & low,
            (first >> np.uint64(32)) ^ words[3] ^ np.uint64(keys[1]),
            first & low,
        ]
        keys = [(keys[0] + 0x9E3779B9) & 0xFFFFFFFF, (keys[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return words[word].astype(np.uint32)
