"""Vector cube root and hypotenuse, without overflow or loss of subnormal numbers."""

from __future__ import annotations

import math
from typing import Final

from tessera.numerics.elementary.writer import FORMATS, Value, Writer

# Exponents from which hypot scales its operands down, below which up, and by how much: squares then stay normal.
LARGE: Final = {"f32": 60, "f64": 500}
SMALL: Final = {"f32": -50, "f64": -400}
SCALE: Final = {"f32": 90, "f64": 700}
# How many steps of third order bring an error of 5 % below the format's.
STEPS: Final = {"f32": 2, "f64": 3}


def hypot(w: Writer, x: Value, y: Value) -> Value:
    """The length of the vector (x, y); infinite if either is, even if the other is NaN."""
    kind = x.kind
    a, b = w.magnitude(x), w.magnitude(y)
    swap = b.compare("ogt", a)
    longer, shorter = w.select(swap, b, a), w.select(swap, a, b)
    large, small = longer.compare("oge", 2.0 ** LARGE[kind]), longer.compare("olt", 2.0 ** SMALL[kind])
    step = SCALE[kind]

    def scaled(up: int) -> Value:
        return w.select(large, w.const(kind, 2.0**-up), w.select(small, w.const(kind, 2.0**up), 1.0))

    factor = scaled(step)
    longer, shorter = longer * factor, shorter * factor
    root = w.intrinsic("sqrt", w.fma(longer, longer, shorter * shorter)) * scaled(-step)
    infinite = a.compare("oeq", math.inf) | b.compare("oeq", math.inf)
    return w.select(infinite, w.const(kind, math.inf), root)


def cbrt(w: Writer, x: Value) -> Value:
    """The cube root: x^(-1/3) by steps of third order from a third of the exponent, times x^2 without its error.

    Source: W. Kahan, "Computing a real cube root", 1991, for the start.
    """
    form = FORMATS[x.kind]
    a = w.magnitude(x)
    # Subnormal numbers have no exponent; the cube of 2^-k is taken back at the end.
    small = a.compare("olt", form.min_normal)
    shift = 3 * ((form.mantissa + 3) // 3)
    a = w.select(small, a * 2.0**shift, a)
    y = start(w, a)
    for _ in range(STEPS[x.kind]):
        error = w.fma(w.negate(a * y), y * y, 1.0)
        y = w.fma(y * error, w.fma(error, 2 / 9, 1 / 3), y)
    root = corrected(w, a, (a * y) * y, y)
    root = w.select(small, root * 2.0 ** (-shift // 3), root)
    finite = a.compare("olt", math.inf) & a.compare("one", 0.0)
    return w.intrinsic("copysign", w.select(finite, root, x + x), x)


def start(w: Writer, a: Value) -> Value:
    """The number a^(-1/3) to 5 %: the bits of a float are about its logarithm."""
    form = FORMATS[a.kind]
    bits = a.as_int()
    # A third by shifts: 1/4 + 1/16 + 1/64 + ...; vectors have no division of integers.
    third = (bits >> 2) + (bits >> 4)
    for step in (4, 8, 16, 32):
        third = third + (third >> step) if step < form.bits else third
    guess = int((form.bias * 4 / 3 - 0.07) * 2.0**form.mantissa)
    return (w.const(form.ints, guess) - third).as_float()


def corrected(w: Writer, a: Value, t: Value, y: Value) -> Value:
    """The root t with one Newton step, whose residue t^3 - a is computed with the low part of t^2."""
    square = t * t
    low = w.fma(t, t, w.negate(square))
    residue = w.fma(t, low, w.fma(t, square, w.negate(a)))
    return w.fma(w.negate(residue), (y * y) * (1 / 3), t)
