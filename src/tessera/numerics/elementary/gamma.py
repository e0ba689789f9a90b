"""Vector erfc, and the logarithm of the gamma function.

erfc is exp(-x^2) times a factor that a polynomial gives over the whole range, see M. M. Shepherd and J. G. Laframboise,
"Chebyshev approximation of (1 + 2x) exp(x^2) erfc x in 0 <= x < infinity", Mathematics of Computation 36, 1981.
lgamma is a polynomial around 2, to which the recurrence leads from up to 4.5 (f32) or 8.5 (f64), and Stirling's series
beyond; negative numbers are reflected.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from tessera.data import dataclass
from tessera.numerics.elementary import coefficients as table
from tessera.numerics.elementary.exponential import CONSTANTS, LOG2_E, biases, nearest_integer, polynomial, scale
from tessera.numerics.elementary.writer import FORMATS, Value, Writer

HALF_LOG_2PI_MINUS_1: Final = (math.log(2 * math.pi) - 1) / 2


@dataclass(frozen=True)
class GammaConstants:
    """Per-format constants.

    `erfc_centre` is where the variable of erfc's polynomial is 0, `erfc_high` where erfc is 0; `shifts` counts the
    steps of the recurrence down to [1.5, 2.5).
    """

    erfc_centre: float
    erfc_high: float
    erfc: tuple[float, ...]
    shifts: int
    lgamma: tuple[float, ...]
    stirling: tuple[float, ...]
    sinpi: tuple[float, ...]


GAMMA: Final = {
    "f32": GammaConstants(2.0, 10.1, table.ERFC_F32, 2, table.LGAMMA_F32, table.STIRLING_F32, table.SINPI_F32),
    "f64": GammaConstants(4.0, 27.3, table.ERFC_F64, 6, table.LGAMMA_F64, table.STIRLING_F64, table.SINPI_F64),
}


def erfc(w: Writer, x: Value, features: frozenset[str]) -> Value:
    """One minus the error function, to the last digits of its tail."""
    a = w.minimum(w.magnitude(x), GAMMA[x.kind].erfc_high)
    factor = erfc_factor(w, a)
    square = a * a
    low = w.fma(a, a, w.negate(square))
    n, count = nearest_integer(w, square, -LOG2_E, biases(FORMATS[x.kind], False))
    minus = w.negate(square)
    r = w.fma(minus, CONSTANTS[x.kind].log2e_low, w.fma(minus, LOG2_E, w.negate(n)))
    r = w.fma(low, -LOG2_E, r)
    power = w.fma(r, polynomial(w, r, CONSTANTS[x.kind].exp2), 1.0)
    tail = scale(w, power * factor, n, count, features)
    return w.select(x.compare("olt", 0.0), 2.0 - tail, tail)


def erfc_factor(w: Writer, a: Value) -> Value:
    """exp(a^2) erfc(a) = (1 + P(q)) / (1 + 2 a), q = (a - c) / (a + c); both quotients are corrected."""
    centre = GAMMA[a.kind].erfc_centre
    inverse = 1.0 / (a + centre)
    q = (a - centre) * inverse
    q = w.fma(inverse, w.fma(w.negate(q), a, w.fma(q + 1.0, -centre, a)), q)
    p = polynomial(w, q, GAMMA[a.kind].erfc)
    inverse = 1.0 / w.fma(a, 2.0, 1.0)
    quotient = w.fma(p, inverse, inverse)
    half = w.fma(w.negate(quotient), a, 0.5)
    return w.fma(w.fma(half, 2.0, p - quotient), inverse, quotient)


@dataclass(frozen=True)
class Parts:
    """What the logarithm of the gamma function is made of: a logarithm and a reciprocal."""

    log: Callable[[Value], Value]
    inverse: Callable[[Value], Value]


def lgamma(w: Writer, x: Value, parts: Parts) -> Value:
    """The logarithm of the gamma function's magnitude; infinite at 0 and negative integers."""
    a = w.magnitude(x)
    positive = lgamma_of_positive(w, a, parts)
    negative = x.compare("olt", 0.0)
    before = w.block
    w.branch(w.any_lane(negative), "negative", "join")
    w.start("negative")
    mirrored = w.select(negative, reflected(w, a, positive, parts), positive)
    after = w.block
    w.jump("join")
    w.start("join")
    return w.phi(x.kind, [(positive, before), (mirrored, after)])


def lgamma_of_positive(w: Writer, a: Value, parts: Parts) -> Value:
    """The logarithm of gamma of a non-negative number, with one logarithm for all ranges."""
    constants, kind = GAMMA[a.kind], a.kind
    tiny, low = a.compare("olt", 0.5), a.compare("olt", 1.5)
    high = a.compare("oge", 2.5 + constants.shifts)
    y, product = a, w.const(kind, 1.0)
    for _ in range(constants.shifts):
        above = y.compare("oge", 2.5)
        y = w.select(above, y - 1.0, y)
        product = w.select(above, product * y, product)
    t = w.select(tiny, a, w.select(low, a - 1.0, y - 2.0))
    low_argument = w.select(tiny, w.fma(a, a, a), a)
    argument = w.select(low, low_argument, w.select(high, a, product))
    logarithm = parts.log(argument)
    signed = w.select(low, w.negate(logarithm), logarithm)
    near = w.fma(t, polynomial(w, t, constants.lgamma), signed)
    inverse = parts.inverse(a)
    tail = w.fma(inverse, polynomial(w, inverse * inverse, constants.stirling), HALF_LOG_2PI_MINUS_1)
    far = w.fma(a - 0.5, logarithm - 1.0, tail)
    return w.select(high, far, near)


def reflected(w: Writer, a: Value, positive: Value, parts: Parts) -> Value:
    """The logarithm of gamma at -a: -log(a sin(pi a) / pi) - lgamma(a)."""
    form = FORMATS[a.kind]
    fraction = w.magnitude(a - w.intrinsic("rint", a))
    z = fraction * fraction
    sine = w.fma(fraction * z, polynomial(w, z, GAMMA[a.kind].sinpi), fraction)
    result = w.negate(parts.log(a * sine)) - positive
    # Where a^2 might underflow, lgamma(-a) is lgamma(a).
    result = w.select(a.compare("olt", 2.0 ** -(form.mantissa + 8)), positive, result)
    pole = fraction.compare("oeq", 0.0) | a.compare("oge", 2.0**form.mantissa)
    return w.select(pole, w.const(a.kind, math.inf), result)
