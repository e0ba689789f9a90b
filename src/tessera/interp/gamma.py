"""The logarithm of the gamma function on NumPy, whose library has none: the reference of all backends.

Numbers are shifted beyond 20 and Stirling's series is summed there, in extended precision where the machine has it.
Around 1 and 2, where the logarithm is zero, its Taylor series keeps the digits that this would cancel.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy

np: Any = numpy  # its stubs know no arithmetic of long doubles

_EULER = 0.5772156649015328606
_START, _NEAR, _TERMS = 20, 0.25, 40
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)
_CUT = 1000.0


@cache
def _zeta_less_one(k: int) -> float:
    """Return the sum of n^-k from 2 on, its end by the formula of Euler and Maclaurin."""
    terms: Any = np.arange(_CUT - 1, 1, -1, dtype=np.longdouble) ** -k
    return float(terms.sum() + _CUT ** (1 - k) / (k - 1) + _CUT**-k / 2 + k * _CUT ** (-k - 1) / 12)


def lgamma(x: Any) -> Any:
    """Return the logarithm of the gamma function's magnitude for f64; infinity at 0 and negative integers."""
    wide: Any = np.asarray(x).astype(np.longdouble)
    size: Any = np.abs(wide)
    with np.errstate(all="ignore"):
        positive: Any = np.where(np.isinf(size), np.inf, _of_positive(size))
        fraction: Any = size - np.rint(size)
        sine: Any = np.abs(np.sin(np.longdouble(np.pi) * fraction))
        mirrored: Any = np.log(np.longdouble(np.pi) / (size * sine)) - positive
        mirrored = np.where((fraction == 0) | np.isinf(size), np.inf, mirrored)
        return np.where(wide < 0, mirrored, positive).astype(np.float64)


def _of_positive(x: Any) -> Any:
    found: Any = _by_stirling(x)
    for root in (1, 2):
        t = x - root
        found = np.where(np.abs(t) < _NEAR, _around(root, np.clip(t, -_NEAR, _NEAR)), found)
    return found


def _by_stirling(x: Any) -> Any:
    product: Any = np.ones_like(x)
    for _ in range(_START):
        low: Any = x < _START
        product = np.where(low, product * x, product)
        x = np.where(low, x + 1, x)
    tail = _series(1 / (x * x)) / x
    constant: Any = np.log(2 * np.longdouble(np.pi)) / 2
    return (x - np.longdouble(0.5)) * np.log(x) - x + constant + tail - np.log(product)


def _series(square: Any) -> Any:
    total: Any = np.zeros_like(square)
    for coefficient in reversed(_STIRLING):
        total = total * square + np.longdouble(coefficient)
    return total


def _around(root: int, t: Any) -> Any:
    """Return the Taylor series around 1 or 2: its coefficients are values of the zeta function, less 1 at 2."""
    more = 2 - root
    total: Any = np.zeros_like(t)
    for k in reversed(range(2, _TERMS)):
        total = total * -t + (_zeta_less_one(k) + more) / k
    return t * t * total - (_EULER - (1 - more)) * t
