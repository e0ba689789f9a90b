"""Vector sine, cosine and tangent over the whole range of the format.

Below a threshold the argument is reduced by Cody and Waite's method (Software Manual for the Elementary
Functions, 1980) with a three-part pi/2 and fused multiply-adds. Vectors with a larger lane take a second
path, M. Payne and R. Hanek's reduction (Radian reduction for trigonometric functions, SIGNUM Newsletter 18,
1983; Muller et al., Handbook of Floating-Point Arithmetic, 2nd ed., chapter 11): the window of the bits of
2/pi that decides x * 2/pi mod 4 is multiplied by the mantissa in integers. For f32 that path is branch-free
over the vector; for f64 it is a scalar helper, called for every lane of such a vector.
"""

from __future__ import annotations

import math
from typing import Final

from tessera.data import dataclass
from tessera.numerics.elementary import coefficients as table
from tessera.numerics.elementary.exponential import nearest_integer
from tessera.numerics.elementary.writer import F32, FORMATS, Value, Writer

TWO_OVER_PI: Final = float.fromhex("0x1.45f306dc9c883p-1")
HALF_PI: Final = float.fromhex("0x1.921fb54442d18p+0")
HALF_PI_LOW: Final = float.fromhex("0x1.1a62633145c07p-54")

# 2/pi in 64-bit words, most significant first: floor(2/pi * 2^1280).
TWO_OVER_PI_WORDS: Final = (
    0xA2F9836E4E441529,
    0xFC2757D1F534DDC0,
    0xDB6295993C439041,
    0xFE5163ABDEBBC561,
    0xB7246E3A424DD2E0,
    0x06492EEA09D1921C,
    0xFE1DEB1CB129A73E,
    0xE88235F52EBB4484,
    0xE99C7026B45F7E41,
    0x3991D639835339F4,
    0x9C845F8BBDF9283B,
    0x1FF897FFDE05980F,
    0xEF2F118B5A0A6D1F,
    0x6D367ECF27CB09B7,
    0x4F463F669E5FEA2D,
    0x7527BAC7EBE5F17B,
    0x3D0739F78A5292EA,
    0x6BFB5FB11F8D5D08,
    0x56033046FC7B6BAB,
    0xF0CFBC209AF4361D,
)


@dataclass(frozen=True)
class TrigConstants:
    """Per-format constants; each part of pi/2 but the last is rounded down."""

    half_pi: tuple[float, float, float]
    threshold: float
    sin: tuple[float, ...]
    cos: tuple[float, ...]


CONSTANTS: Final = {
    "f32": TrigConstants(
        half_pi=(
            float.fromhex("0x1.921fb4p+0"),
            float.fromhex("0x1.4442dp-24"),
            float.fromhex("0x1.84698ap-48"),
        ),
        threshold=2.0**20,
        sin=table.SIN_F32,
        cos=table.COS_F32,
    ),
    "f64": TrigConstants(
        half_pi=(
            HALF_PI,
            float.fromhex("0x1.1a62633145c06p-54"),
            float.fromhex("0x1.c1cd129024e09p-107"),
        ),
        threshold=2.0**30,
        sin=table.SIN_F64,
        cos=table.COS_F64,
    ),
}


@dataclass(frozen=True)
class Reduced:
    """|x| = quadrant * pi/2 + r + low: the quadrant is in the low two bits of an integer, low is tiny."""

    r: Value
    low: Value
    quadrant: Value


def reduce_small(w: Writer, a: Value) -> Reduced:
    """Cody-Waite: the first difference is exact, what the second loses goes into the low part."""
    high, middle, low = CONSTANTS[a.kind].half_pi
    n, quadrant = nearest_integer(w, a, TWO_OVER_PI)
    exact = w.fma(n, -high, a)
    r = exact - n * middle
    # exact - r is exact unless |exact| < |n * middle| / 2, where r is large against what is lost.
    rest = w.fma(n, -middle, exact - r)
    return Reduced(r, w.fma(n, -low, rest), quadrant)


def reduce_roughly(w: Writer, a: Value) -> Reduced:
    """The same without the low part."""
    n, quadrant = nearest_integer(w, a, TWO_OVER_PI)
    r = a
    for part in CONSTANTS[a.kind].half_pi:
        r = w.fma(n, -part, r)
    return Reduced(r, w.const(a.kind, 0.0), quadrant)


def reduce(w: Writer, a: Value) -> Reduced:
    """The reduction of |x| over the whole range."""
    return over_range(w, a, reduce_small(w, a))


def over_range(w: Writer, a: Value, small: Reduced) -> Reduced:
    """A reduction that is good below the threshold, with a branch to the large path when any lane needs it."""
    large = a.compare("oge", CONSTANTS[a.kind].threshold)
    # Infinities stay with the first reduction, which makes NaN of them.
    large = large & a.compare("olt", math.inf)
    before = w.block
    w.branch(w.any_lane(large), "large", "join")
    w.start("large")
    other = reduce_large_f32(w, a) if a.kind == "f32" else reduce_large_f64(w, a, large)
    r = w.select(large, other.r, small.r)
    low = w.select(large, other.low, small.low)
    quadrant = w.select(large, other.quadrant, small.quadrant)
    after = w.block
    w.jump("join")
    w.start("join")
    return Reduced(
        w.phi(a.kind, [(small.r, before), (r, after)]),
        w.phi(a.kind, [(small.low, before), (low, after)]),
        w.phi(quadrant.kind, [(small.quadrant, before), (quadrant, after)]),
    )


def window_words(w: Writer, index: Value, offset: Value) -> list[Value]:
    """96 bits of 2/pi as three i32, from bit `32 * index + offset`, counted in one zero word before 2/pi."""
    words = [0]
    for word in TWO_OVER_PI_WORDS[:4]:
        words += [word >> 32, word & 0xFFFFFFFF]
    raw: list[Value] = []
    matches = [index.compare("eq", j) for j in range(1, 5)]
    for k in range(4):
        chosen = w.const("i32", words[k])
        for j, match in enumerate(matches, start=1):
            chosen = w.select(match, w.const("i32", words[j + k]), chosen)
        raw.append(chosen)
    return [w.intrinsic("fshl", raw[k], raw[k + 1], offset) for k in range(3)]


def reduce_large_f32(w: Writer, a: Value) -> Reduced:
    """Payne-Hanek for f32, 2^20 <= a < inf: mantissa times 96 bits of 2/pi, modulo 4 in fixed point 2.62."""
    bits = a.as_int()
    mantissa = ((bits & F32.mantissa_mask) | (1 << F32.mantissa)).to("zext", "i64")
    # a = mantissa * 2^s with s = exponent - 150; the window starts at the bit of 2/pi of weight 2^(1 - s).
    position = (bits >> F32.mantissa) - (150 - 30)
    g0, g1, g2 = (word.to("zext", "i64") for word in window_words(w, position >> 5, position & 31))
    product = ((mantissa * g0) << 32) + mantissa * g1 + ((mantissa * g2) >> 32)
    quadrant = (product + (1 << 61)) >> 62
    fraction = product - (quadrant << 62)
    # Two exact halves instead of i64 to f64, which AVX2 lacks.
    upper = (fraction >> 32).to("trunc", "i32").to("sitofp", "f64")
    lower = (fraction.to("trunc", "i32") >> 1).to("sitofp", "f64")
    wide = w.fma(upper, HALF_PI * 2.0**-30, lower * (HALF_PI * 2.0**-61))
    r = wide.to("fptrunc", "f32")
    low = (wide - r.to("fpext", "f64")).to("fptrunc", "f32")
    return Reduced(r, low, quadrant.to("trunc", "i32"))


def reduce_large_f64(w: Writer, a: Value, large: Value) -> Reduced:
    """Payne-Hanek for f64, for the large lanes only (others get a harmless 0)."""
    return Reduced(*w.large_remainder(w.select(large, a, 0.0)))


def sine_and_cosine(w: Writer, reduced: Reduced) -> tuple[Value, Value]:
    """The sine and cosine of r for |r| <= pi/4; the low part matters for the sine only."""
    r = reduced.r
    constants = CONSTANTS[r.kind]
    z = r * r
    sine = r + w.fma(r * z, w.horner(z, constants.sin), reduced.low)
    cosine = w.fma(z, w.fma(z, w.horner(z, constants.cos), -0.5), 1.0)
    return sine, cosine


def choose(w: Writer, sine: Value, cosine: Value, quadrant: Value, sign: Value) -> Value:
    """Cosine in odd quadrants, sine in even ones; bit 1 of the quadrant and `sign` flip its sign."""
    form = FORMATS[sine.kind]
    odd = (quadrant & 1).compare("ne", 0)
    flip = (quadrant & 2) << (form.bits - 2)
    return (w.select(odd, cosine, sine).as_int() ^ flip ^ sign).as_float()


def sin(w: Writer, x: Value) -> Value:
    """The sine; |x| is reduced and the sign of x put back, which also keeps -0."""
    reduced = reduce(w, w.magnitude(x))
    sine, cosine = sine_and_cosine(w, reduced)
    return choose(w, sine, cosine, reduced.quadrant, x.as_int() & FORMATS[x.kind].sign)


def cos(w: Writer, x: Value) -> Value:
    """The cosine."""
    reduced = reduce(w, w.magnitude(x))
    sine, cosine = sine_and_cosine(w, reduced)
    return choose(w, sine, cosine, reduced.quadrant + 1, w.const(FORMATS[x.kind].ints, 0))


def tan(w: Writer, x: Value) -> Value:
    """The tangent; the cosine gets the low part of the remainder here, since it may be the divisor."""
    reduced = reduce(w, w.magnitude(x))
    sine, cosine = sine_and_cosine(w, reduced)
    cosine = w.fma(w.negate(reduced.low), reduced.r, cosine)
    odd = (reduced.quadrant & 1).compare("ne", 0)
    quotient = w.select(odd, cosine, sine) / w.select(odd, sine, cosine)
    flip = (reduced.quadrant & 1) << (FORMATS[x.kind].bits - 1)
    return (quotient.as_int() ^ flip ^ (x.as_int() & FORMATS[x.kind].sign)).as_float()
