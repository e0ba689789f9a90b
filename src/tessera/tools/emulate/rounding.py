"""Exact sums and fused products, and rounding to narrow formats, each rounded once.

A sum that is rounded to odd (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using
rounding to odd", IEEE Transactions on Computers 57-4, 2008) can be rounded again to fewer bits as the exact one would.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from tessera.tools.emulate.memory import where

Array = Any


def _to_odd(rounded: Array, error: Array) -> Array:
    """Return what lies towards the error of an inexact, even number."""
    bits = rounded.view(np.int64)
    up = (error > 0) == (rounded > 0)
    change = (error != 0) & (bits & 1 == 0) & np.isfinite(rounded) & (rounded != 0)
    return where(change, where(up, bits + 1, bits - 1), bits).view(np.float64)


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Return the rounded sum of f64 arrays, and what is missing of it."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def odd_sum(a: Array, b: Array) -> Array:
    """Return sums of f64 arrays rounded to odd."""
    total, error = two_sum(a, b)
    return _to_odd(total, where(np.isfinite(total), error, 0.0))


def fma32(a: Array, b: Array, c: Array) -> Array:
    """Return `a b + c` of arrays that f32 holds, rounded to odd in f64."""
    return odd_sum(a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64))


def fma64(a: Array, b: Array, c: Array) -> Array:
    """Return `a b + c` of f64 arrays, rounded once."""
    a, b, c = np.broadcast_arrays(a, b, c)
    plain = a * b + c
    upper, lower = _two_product(a, b)
    first, second = two_sum(c, lower)
    top, rest = two_sum(upper, first)
    result = top + odd_sum(rest, second)
    result = where(plain == 0, where((upper == 0) & (lower == 0) | (result == 0), plain, result), result)
    sizes = [np.abs(value) for value in (a, b, c, upper)]
    good = np.isfinite(plain)
    for size in sizes:
        good &= (size < 2.0**500) & ((size > 2.0**-400) | (size == 0))
    good &= (np.abs(plain) > 2.0**-400) | (plain == 0)
    result = where(good, result, plain)
    for at in np.nonzero(~good & np.isfinite(a) & np.isfinite(b) & np.isfinite(c))[0]:
        result[at] = _exact(float(a[at]), float(b[at]), float(c[at]), float(plain[at]))
    return result


def _two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """Return the rounded product and what is missing of it (Dekker)."""
    product = a * b
    a1, a2 = _split(a)
    b1, b2 = _split(b)
    return product, a2 * b2 - (((product - a1 * b1) - a2 * b1) - a1 * b2)


def _split(a: Array) -> tuple[Array, Array]:
    scaled = a * 134217729.0
    top = scaled - (scaled - a)
    return top, a - top


def _exact(a: float, b: float, c: float, plain: float) -> float:
    total = Fraction(a) * Fraction(b) + Fraction(c)
    if total == 0:
        return plain
    try:
        return float(total)
    except OverflowError:
        return float("inf") if total > 0 else float("-inf")


def narrowed(value: Array, kind: str) -> Array:
    """Return f64 numbers rounded to nearest even as `f32`, `f16`, or the bits of `bf16`."""
    if kind == "f64":
        return value
    if kind == "f32":
        return value.astype(np.float32)
    if kind == "f16":
        return value.astype(np.float16)
    return to_bf16(_odd_f32(value))


def _odd_f32(value: Array) -> Array:
    """Return f64 numbers rounded to odd in f32."""
    near = value.astype(np.float32)
    bits = near.view(np.int32)
    error = value - near.astype(np.float64)
    change = (error != 0) & (bits & 1 == 0) & np.isfinite(near) & (near != 0)
    up = (error > 0) == (near > 0)
    return where(change, where(up, bits + 1, bits - 1), bits).astype(np.int32).view(np.float32)


def to_bf16(value: Array) -> Array:
    """Return the bits of f32 numbers rounded to nearest even as bf16."""
    bits = value.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
    return where(np.isnan(value), np.uint32(0x7FFF), rounded >> np.uint32(16)).astype(np.uint16)


def from_bf16(bits: Array) -> Array:
    """Return the f32 numbers of the bits of bf16."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def directed(value: Array, near: Array, how: str) -> Array:
    """Return f64 numbers rounded towards zero (`rz`), down (`rm`) or up (`rp`) in f32 or f16.

    Args:
        value: the numbers.
        near: the same rounded to nearest.
        how: the mode.
    """
    wide = near.astype(np.float64)
    least, most = near.dtype.type(-np.inf), near.dtype.type(np.inf)
    low = where(wide > value, np.nextafter(near, least), near)
    high = where(wide < value, np.nextafter(near, most), near)
    down = np.full(value.shape, how == "rm") | ((value > 0) & (how == "rz"))
    return where(np.isnan(value) | (wide == value), near, where(down, low, high))
