"""Functions whose results become 16-bit floats, in f32 by a GPU's special function unit.

Each is within 2^-14 of its result (`numerics.functions.ROUGH_ERROR`). The unit's results have absolute errors of about
2^-22 where a function passes through zero, which is little beside results from 2^-8 up. Nearer to zero two terms of the
function's series leave out less than 2^-15.

Source: PTX ISA, "Floating Point Instructions: ex2, lg2, rcp".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from tessera.numerics.elementary.exponential import LOG2_E
from tessera.numerics.elementary.logarithm import unit_log2
from tessera.numerics.elementary.power import special_cases
from tessera.numerics.elementary.writer import Value, Writer

NEAR: Final = 2.0**-7
"""Arguments whose results are sums of two terms."""


def _power(w: Writer, x: Value) -> Value:
    return w.unit("ex2.approx.ftz.f32", x)


def _is_near(w: Writer, x: Value) -> Value:
    return w.magnitude(x).compare("olt", NEAR)


def tanh(w: Writer, x: Value) -> Value:
    """`1 - 2 / (e^2|x| + 1)`, and x itself near zero."""
    below = _power(w, w.magnitude(x) * (2 * LOG2_E)) + 1.0
    far = w.fma(w.unit("rcp.approx.ftz.f32", below), -2.0, 1.0)
    return w.select(_is_near(w, x), x, w.intrinsic("copysign", far, x))


def sigmoid(w: Writer, x: Value) -> Value:
    """`1 / (1 + e^-x)`."""
    return w.unit("rcp.approx.ftz.f32", _power(w, x * -LOG2_E) + 1.0)


def expm1(w: Writer, x: Value) -> Value:
    """`e^x - 1`, and x + x^2 / 2 near zero."""
    far = _power(w, x * LOG2_E) - 1.0
    return w.select(_is_near(w, x), w.fma(x * x, 0.5, x), far)


def log1p(w: Writer, x: Value) -> Value:
    """The logarithm of 1 + x, and x - x^2 / 2 near zero."""
    far = w.unit("lg2.approx.ftz.f32", x + 1.0) * math.log(2.0)
    return w.select(_is_near(w, x), w.fma(x * x, -0.5, x), far)


def _logarithm(base: float) -> Callable[[Writer, Value], Value]:
    """Return the logarithm to a base: the binary one by a factor, and two terms near 1."""

    def log(w: Writer, x: Value) -> Value:
        t = x - 1.0
        near = w.fma(t * t, -0.5, t) * (1 / math.log(base))
        return w.select(_is_near(w, t), near, w.unit("lg2.approx.f32", x) * math.log(2.0, base))

    return log


def power(w: Writer, x: Value, y: Value) -> Value:
    """`2^(y log2 |x|)`: results below 2^-126 may be 0."""
    product = y * unit_log2(w, w.magnitude(x))
    return special_cases(w, x, y, _power(w, product))


OF_UNIT: Final[dict[str, Callable[..., Value]]] = {
    "expm1": expm1,
    "log": _logarithm(math.e),
    "log2": _logarithm(2),
    "log10": _logarithm(10),
    "log1p": log1p,
    "pow": power,
    "sigmoid": sigmoid,
    "tanh": tanh,
}
"""By the function's name."""
