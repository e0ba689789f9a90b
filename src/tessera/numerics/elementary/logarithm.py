"""Vector logarithms: log, log2, log10, log1p.

x = 2^e * (1 + f) with 1 + f in [3/4, 3/2) or [sqrt(1/2), sqrt(2)), by integer steps on the bits or by
`vgetexp` and `vgetmant`; then a polynomial in f and a two-part ln 2, see J.-M. Muller et al., Handbook of
Floating-Point Arithmetic, 2nd ed., chapter 11.

Where a GPU's special function unit may be used, one part of ln 2 does, and the unit gives what lies outside of the
positive normal numbers: 25 instructions, of 35 to 43.
"""

from __future__ import annotations

import math
from typing import Final

from tessera.data import dataclass
from tessera.numerics.elementary import coefficients as table
from tessera.numerics.elementary.exponential import (
    CONSTANTS,
    LOG2_E,
    avx512_suffix,
    polynomial,
)
from tessera.numerics.elementary.writer import FORMATS, UNIT, Value, Writer

# The least 1 + f. From 3/4 up, log1p(x) has f = x exactly for small x; from sqrt(1/2) up, log2 cancels least.
THREE_QUARTERS: Final = 0.75
SQRT_HALF: Final = math.sqrt(0.5)
# vgetmant: [1, 2) or [3/4, 3/2), the sign dropped (so that -0 gives 1) and NaN for negative numbers.
GETMANT_FROM_ONE: Final = 0b1100
GETMANT_FROM_THREE_QUARTERS: Final = 0b1111


@dataclass(frozen=True)
class LogConstants:
    """Per-format constants of the logarithms; log2(e), log10(e) and log10(2) in two parts.

    The high part of log10(2) is rounded down, so that the low one is positive: -inf has no inf - inf.
    """

    log2e_high: float
    log2e_low: float
    log: tuple[float, ...]
    log2: tuple[float, ...]
    log10e: tuple[float, float]
    log10_2: tuple[float, float]
    log10: tuple[float, ...]


LOG_CONSTANTS: Final = {
    "f32": LogConstants(
        log2e_high=float.fromhex("0x1.715476p+0"),
        log2e_low=CONSTANTS["f32"].log2e_low,
        log=table.LOG_F32,
        log2=table.LOG2_F32,
        log10e=(float.fromhex("0x1.bcb7b20000000p-2"), float.fromhex("-0x1.5b235e0000000p-27")),
        log10_2=(float.fromhex("0x1.3441340000000p-2"), float.fromhex("0x1.09f7a00000000p-26")),
        log10=table.LOG10_F32,
    ),
    "f64": LogConstants(
        log2e_high=LOG2_E,
        log2e_low=CONSTANTS["f64"].log2e_low,
        log=table.LOG_F64,
        log2=table.LOG2_F64,
        log10e=(float.fromhex("0x1.bcb7b1526e50ep-2"), float.fromhex("0x1.95355baaafad3p-57")),
        log10_2=(float.fromhex("0x1.34413509f79fep-2"), float.fromhex("0x1.e623e2566b02ep-55")),
        log10=table.LOG10_F64,
    ),
}


@dataclass(frozen=True)
class Split:
    """x = 2^e * (1 + f); `total`: e and f are right for zeros, infinities, NaN and negative x too."""

    e: Value
    f: Value
    total: bool


def split(w: Writer, x: Value, low: float, features: frozenset[str]) -> Split:
    """Take exponent and mantissa apart; unless `total`, x must be positive and finite."""
    suffix = avx512_suffix(w.width, x.kind, features)
    if suffix:
        return split_by_instruction(w, x, low, suffix)
    form = FORMATS[x.kind]
    shift = 2.0**form.mantissa
    small = x.compare("olt", form.min_normal)
    bias = w.select(small, w.const(x.kind, shift + form.bias + form.mantissa), shift + form.bias)
    return split_bits(w, w.select(small, x * shift, x), low, bias)


def split_bits(w: Writer, x: Value, low: float, bias: Value) -> Split:
    """The split of a positive normal number by integers; `bias` is 2^mantissa plus the exponent bias."""
    form = FORMATS[x.kind]
    start = form.bits_of(low)
    shifted = x.as_int() + (form.one - start)
    exponent = ((shifted >> form.mantissa) | form.bits_of(2.0**form.mantissa)).as_float()
    mantissa = ((shifted & form.mantissa_mask) + start).as_float()
    return Split(exponent - bias, mantissa - 1.0, total=False)


def split_by_instruction(w: Writer, x: Value, low: float, suffix: str) -> Split:
    """The split of any x by AVX-512: getexp(0) = -inf, getmant(inf) = 1, getmant of a negative is NaN."""
    exponent = w.avx512("mask.getexp", (x,), (), suffix)
    control = GETMANT_FROM_THREE_QUARTERS if low == THREE_QUARTERS else GETMANT_FROM_ONE
    mantissa = w.avx512("mask.getmant", (x,), (str(control),), suffix)
    if low == THREE_QUARTERS:
        upper = mantissa.compare("olt", 1.0)
    else:
        upper = mantissa.compare("oge", 2 * low)
        mantissa = w.select(upper, mantissa * 0.5, mantissa)
    return Split(w.select(upper, exponent + 1.0, exponent), mantissa - 1.0, total=True)


def special_cases(w: Writer, x: Value, result: Value, pole: float = 0.0) -> Value:
    """The logarithm's values outside its domain: inf at inf, -inf at the pole, NaN below it and for NaN."""
    inside = w.select(x.compare("olt", math.inf), result, x)
    outside = w.select(x.compare("oeq", pole), w.const(x.kind, -math.inf), math.nan)
    return w.select(x.compare("ogt", pole), inside, outside)


def unit_parts(w: Writer, above: Value, low: float) -> tuple[Value, Value]:
    """Of a positive normal f32: the bits of -e in place, and e as a multiple of 2^-23.

    Zero counts as -0 times a negative factor, which keeps the sign of what it is added to.
    """
    form = FORMATS["f32"]
    bits = (above.as_int() - form.bits_of(low)) & (form.mantissa_mask ^ 0xFFFFFFFF)
    negated = w.const("i32", 0) - bits
    return negated, negated.to("sitofp", "f32")


def unit_or(w: Writer, x: Value, result: Value, factor: float) -> Value:
    """The result where x is positive and normal, else what the unit says of it."""
    form = FORMATS["f32"]
    normal = (x.as_int() - form.bits_of(form.min_normal)).compare("ult", 0x7F000000)
    return w.select(normal, result, w.unit("lg2.approx.f32", x) * factor)


def unit_log(w: Writer, x: Value) -> Value:
    """The natural logarithm of f32 by a special function unit."""
    negated, e = unit_parts(w, x, THREE_QUARTERS)
    f = (x.as_int() + negated).as_float() - 1.0
    near = w.fma(f * f, polynomial(w, f, LOG_CONSTANTS["f32"].log), f)
    return unit_or(w, x, w.fma(e, -math.log(2.0) * 2.0**-23, near), math.log(2.0))


def unit_log2(w: Writer, x: Value) -> Value:
    """The binary logarithm of f32 by a special function unit."""
    negated, e = unit_parts(w, x, SQRT_HALF)
    f = (x.as_int() + negated).as_float() - 1.0
    return unit_or(w, x, log2_of_parts(w, e * -(2.0**-23), f), 1.0)


def unit_log1p(w: Writer, x: Value) -> Value:
    """log(1 + x) of f32 by a special function unit; the fraction comes from x itself."""
    form, above = FORMATS["f32"], x + 1.0
    negated, e = unit_parts(w, above, THREE_QUARTERS)
    four = (negated + form.bits_of(4.0)).as_float()  # 4 * 2^-e, since 2^-e itself may be subnormal
    f = (x.as_int() + negated).as_float() - w.fma(four, -0.25, 1.0)
    near = w.fma(f * f, polynomial(w, f, LOG_CONSTANTS["f32"].log), f)
    return unit_or(w, above, w.fma(e, -math.log(2.0) * 2.0**-23, near), math.log(2.0))


def log_of_parts(w: Writer, e: Value, f: Value) -> Value:
    """The sum e * ln 2 + log(1 + f)."""
    constants = CONSTANTS[f.kind]
    q = polynomial(w, f, LOG_CONSTANTS[f.kind].log)
    tail = w.fma(f * f, q, e * constants.ln2_low)
    return w.fma(e, constants.ln2_high, f + tail)


def log2_of_parts(w: Writer, e: Value, f: Value) -> Value:
    """The sum e + log2(1 + f); the product by log2(e) is made in two parts."""
    constants = LOG_CONSTANTS[f.kind]
    tail = w.fma(f * f, polynomial(w, f, constants.log2), f * constants.log2e_low)
    return e + w.fma(f, constants.log2e_high, tail)


def log10_of_parts(w: Writer, e: Value, f: Value) -> Value:
    """The sum e * log10(2) + log10(1 + f); both constants in two parts."""
    constants = LOG_CONSTANTS[f.kind]
    (factor, factor_low), (unit, unit_low) = constants.log10e, constants.log10_2
    tail = w.fma(f, factor_low, w.fma(e, unit_low, f * f * polynomial(w, f, constants.log10)))
    # The larger term last, so that its rounding is the result's.
    return w.fma(e, unit, w.fma(f, factor, tail))


def log(w: Writer, x: Value, features: frozenset[str]) -> Value:
    """The natural logarithm."""
    if UNIT in features:
        return unit_log(w, x)
    parts = split(w, x, THREE_QUARTERS, features)
    result = log_of_parts(w, parts.e, parts.f)
    return result if parts.total else special_cases(w, x, result)


def log2(w: Writer, x: Value, features: frozenset[str]) -> Value:
    """The binary logarithm."""
    if UNIT in features:
        return unit_log2(w, x)
    parts = split(w, x, SQRT_HALF, features)
    result = log2_of_parts(w, parts.e, parts.f)
    return result if parts.total else special_cases(w, x, result)


def log10(w: Writer, x: Value, features: frozenset[str]) -> Value:
    """The decimal logarithm."""
    parts = split(w, x, SQRT_HALF, features)
    result = log10_of_parts(w, parts.e, parts.f)
    return result if parts.total else special_cases(w, x, result)


def log1p(w: Writer, x: Value, features: frozenset[str]) -> Value:
    """log(1 + x): the exponent comes from the rounded sum, the fraction from x itself, exactly scaled."""
    if UNIT in features:
        return unit_log1p(w, x)
    form = FORMATS[x.kind]
    low = form.bits_of(THREE_QUARTERS)
    exponent = ((x + 1.0).as_int() + (form.one - low)) >> form.mantissa
    shift = 2.0**form.mantissa
    e = (exponent | form.bits_of(shift)).as_float() - (shift + form.bias)
    # 4 * 2^-e, since 2^-e itself may be subnormal.
    four = w.const(form.ints, (2 * form.bias + 2) << form.mantissa)
    unscale = (four - (exponent << form.mantissa)).as_float()
    f = w.fma(x * 0.25, unscale, w.fma(unscale, 0.25, -1.0))
    result = special_cases(w, x, log_of_parts(w, e, f), pole=-1.0)
    return w.select(w.magnitude(x).compare("olt", CONSTANTS[x.kind].tiny), x, result)
