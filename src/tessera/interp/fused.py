"""The fused multiply-add of f32 and f64 on NumPy, exact but for its one rounding.

Source: S. Boldo, G. Melquiond, "Emulation of a FMA and correctly rounded sums: proved algorithms using rounding to
odd", 2008; T. J. Dekker, "A floating-point technique for extending the available precision", 1971, for the product.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

from tessera.interp.values import Array
from tessera.numerics import dtypes
from tessera.numerics.conversions import round_once

_SPLITTER = 2.0**27 + 1
_LEAST, _MOST = -960, 990
"""Sums of two exponents between which the product of two f64 and its error are exact."""


def fma(a: Any, b: Any, c: Any) -> Any:
    """Return `a * b + c`, rounded once.

    Args:
        a: f32 or f64 numbers.
        b: as many of the same type.
        c: likewise.
    """
    if a.dtype == np.float64:
        return _fma_f64(*np.broadcast_arrays(a, b, c))
    product, addend = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)  # the product is exact
    return round_once(_to_odd(product, addend), dtypes.f32)


def _to_odd(a: Array, b: Array) -> Array:
    """Return sums rounded to odd: where inexact, that neighbour whose last bit is 1, which a second rounding keeps."""
    total = np.asarray(a + b)
    error = _sum_error(a, b, total)
    step = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    even = (total.view(np.uint64) & np.uint64(1)) == 0
    return np.where((error != 0) & np.isfinite(total) & even, step, total)


def _sum_error(a: Any, b: Any, total: Any) -> Any:
    """Return the exact `a + b - total` (Knuth, TAOCP 2, 4.2.2, theorem B)."""
    part = total - a
    return (a - (total - part)) + (b - part)


def _product_error(a: Array, b: Array, product: Array) -> Array:
    high_a, high_b = _SPLITTER * a - (_SPLITTER * a - a), _SPLITTER * b - (_SPLITTER * b - b)
    low_a, low_b = a - high_a, b - high_b
    return ((high_a * high_b - product) + high_a * low_b + low_a * high_b) + low_a * low_b


def _fma_f64(a: Array, b: Array, c: Array) -> Array:
    with np.errstate(all="ignore"):
        product = a * b
        low = _product_error(a, b, product)
        middle = c + low
        total = product + middle
        rest = _to_odd(_sum_error(c, low, middle), _sum_error(product, middle, total))
        result = np.asarray(total + rest)
        plain = ~(np.isfinite(a) & np.isfinite(b) & np.isfinite(c)) | (a == 0) | (b == 0)
        exponents = [np.frexp(x)[1] for x in (a, b, c)]
        both = exponents[0] + exponents[1]
        inside = (both > _LEAST) & (both < _MOST) & (exponents[2] < _MOST)
        inside &= (exponents[0] < _MOST) & (exponents[1] < _MOST)
        result = np.array(
            np.where(plain, np.where(np.isfinite(a) & np.isfinite(b) & np.isinf(c), c, product + c), result)
        )
        for at in map(tuple, np.argwhere(~plain & ~inside)):
            result[at] = _exactly(float(a[at]), float(b[at]), float(c[at]))
    return result


def _exactly(a: float, b: float, c: float) -> float:
    """Return `a * b + c` of finite numbers of any magnitude, no factor being 0."""
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    sign = -1.0 if exact < 0 else 1.0
    try:
        return math.copysign(float(exact), sign)
    except OverflowError:
        return sign * math.inf
