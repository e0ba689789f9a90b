"""Vector pow: 2^(y * log2 |x|), with log2 carried to more bits than the format has.

y multiplies the absolute error of the logarithm, up to the largest exponent, so it needs as many bits more
as the exponent has. For f32 all is done in f64. For f64 the logarithm is a pair of doubles (T. J. Dekker, A
floating-point technique for extending the available precision, 1971; with fused multiply-adds, J.-M. Muller
et al., Handbook of Floating-Point Arithmetic, 2nd ed., chapters 5 and 11), from log(1 + f) = 2 atanh(f / (2
+ f)).
"""

from __future__ import annotations

import math
from typing import Final

from tessera.data import dataclass
from tessera.numerics.elementary import coefficients as table
from tessera.numerics.elementary.exponential import (
    CONSTANTS,
    LOG2_E,
    nearest_integer,
    polynomial,
    power_of_two,
    scale,
)
from tessera.numerics.elementary.logarithm import SQRT_HALF, Split, log2_of_parts, split
from tessera.numerics.elementary.writer import F32, F64, FORMATS, Value, Writer

THIRD: Final = 1 / 3
THIRD_LOW: Final = float.fromhex("0x1.5555555555555p-56")


@dataclass(frozen=True)
class Pair:
    """The unevaluated sum of two doubles, the second below half an ulp of the first or so."""

    high: Value
    low: Value


def fast_two_sum(a: Value, b: Value) -> Pair:
    """The sum a + b exactly, for |a| >= |b| or a = 0."""
    total = a + b
    return Pair(total, b - (total - a))


def two_product(w: Writer, a: Value, b: Value) -> Pair:
    """The product a * b exactly."""
    product = a * b
    return Pair(product, w.fma(a, b, w.negate(product)))


def split_magnitude(w: Writer, a: Value, features: frozenset[str]) -> Split:
    """The split of |x| with an exponent of -inf for 0, inf for inf and NaN for NaN."""
    parts = split(w, a, SQRT_HALF, features)
    if parts.total:
        return parts
    e = w.select(a.compare("olt", math.inf), parts.e, a)
    e = w.select(a.compare("oeq", 0.0), w.const(a.kind, -math.inf), e)
    return Split(e, parts.f, total=True)


def pow_f32(w: Writer, x: Value, y: Value, features: frozenset[str]) -> Value:
    """x^y in f32."""
    parts = split_magnitude(w, w.magnitude(x), features)
    f = parts.f.to("fpext", "f64")
    log2_a = w.fma(f, polynomial(w, f, table.POW_LOG2), parts.e.to("fpext", "f64"))
    product = w.minimum(w.maximum(y.to("fpext", "f64") * log2_a, -200.0), 200.0)
    n, count = nearest_integer(w, product, above=F64.bias)
    r = product - n
    power = w.fma(r, polynomial(w, r, table.POW_EXP2), 1.0) * power_of_two(F64, count)
    return special_cases(w, x, y, power.to("fptrunc", "f32"))


def pow_f64(w: Writer, x: Value, y: Value, features: frozenset[str]) -> Value:
    """x^y in f64."""
    constants = CONSTANTS["f64"]
    log2_a = log2_pair(w, split_magnitude(w, w.magnitude(x), features))
    product = two_product(w, y, log2_a.high)
    # Beyond the range the low part may be inf - inf.
    low = w.select(
        w.magnitude(product.high).compare("olt", 2048.0),
        w.fma(y, log2_a.low, product.low),
        w.const("f64", 0.0),
    )
    high = w.minimum(w.maximum(product.high, constants.exp2_low), constants.exp2_high)
    n, count = nearest_integer(w, high, above=2 * F64.bias)
    r = (high - n) + low
    power = w.fma(r, polynomial(w, r, constants.exp2), 1.0)
    return special_cases(w, x, y, scale(w, power, n, count, features))


def log2_pair(w: Writer, parts: Split) -> Pair:
    """The sum e + log2(1 + f), relative error 2^-64 or less.

    log2(1 + f) = 2 log2(e) * s * (1 + z/3 + z^2 P(z)) with s = f / (2 + f) and z = s^2.
    """
    s = quotient(w, parts.f)
    z = two_product(w, s.high, s.high)
    z_low = w.fma(s.high + s.high, s.low, z.low)
    third = w.const("f64", THIRD)
    first = two_product(w, z.high, third)
    first_low = w.fma(z.high, THIRD_LOW, w.fma(z_low, third, first.low))
    tail = w.fma(z.high * z.high, polynomial(w, z.high, table.POW_ATANH), first_low)
    factor = fast_two_sum(first.high, tail)
    product = two_product(w, s.high, factor.high)
    rest = w.fma(s.high, factor.low, w.fma(s.low, factor.high, product.low + s.low))
    atanh = fast_two_sum(s.high, product.high)
    atanh_low = atanh.low + rest
    scaled = two_product(w, atanh.high, w.const("f64", 2 * LOG2_E))
    scaled_low = w.fma(atanh.high, 2 * CONSTANTS["f64"].log2e_low, w.fma(atanh_low, 2 * LOG2_E, scaled.low))
    total = fast_two_sum(parts.e, scaled.high)
    return Pair(total.high, total.low + scaled_low)


def quotient(w: Writer, f: Value) -> Pair:
    """The quotient f / (2 + f) as a pair."""
    two = w.const("f64", 2.0)
    divisor = fast_two_sum(two, f)
    inverse = w.const("f64", 1.0) / divisor.high
    high = f * inverse
    minus = w.negate(high)
    remainder = w.fma(minus, divisor.low, w.fma(minus, divisor.high, f))
    return Pair(high, remainder * inverse)


def special_cases(w: Writer, x: Value, y: Value, magnitude: Value) -> Value:
    """Sign and domain of pow as in C99, annex F.9.4.4, given |x|^y."""
    form = FORMATS[x.kind]
    a, b, half = w.magnitude(x), w.magnitude(y), y * 0.5
    whole = w.intrinsic("rint", y).compare("oeq", y)
    odd = w.intrinsic("rint", half).compare("une", half)
    odd_sign = w.select(whole & odd, x.as_int() & form.sign, 0)
    signed = (magnitude.as_int() ^ odd_sign).as_float()
    invalid = x.compare("olt", 0.0) & a.compare("olt", math.inf) & (whole ^ 1)
    result = w.select(invalid, w.const(x.kind, math.nan), signed)
    unit = y.compare("oeq", 0.0) | x.compare("oeq", 1.0)
    unit = unit | (a.compare("oeq", 1.0) & b.compare("oeq", math.inf))
    return w.select(unit, w.const(x.kind, 1.0), result)


def pow_fast(w: Writer, x: Value, y: Value, features: frozenset[str]) -> Value:
    """x^y in f32 alone, without subnormal results: the relative error grows with |y * log2 x|."""
    parts = split_magnitude(w, w.magnitude(x), features)
    product = y * log2_of_parts(w, parts.e, parts.f)
    product = w.minimum(w.maximum(product, -127.0), 128.0)
    n, count = nearest_integer(w, product, above=F32.bias)
    r = product - n
    power = w.fma(r, w.horner(r, table.EXP2_F32), 1.0) * power_of_two(F32, count)
    return special_cases(w, x, y, power)
