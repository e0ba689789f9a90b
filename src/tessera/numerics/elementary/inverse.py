"""Vector arcus functions: atan, atan2, asin, acos.

atan is an odd polynomial on [-1, 1]; further out it is pi/2 - atan(1/x). asin is one on [-1/2, 1/2]; beyond,
asin(x) = pi/2 - 2 asin(sqrt((1 - x) / 2)), where the difference is exact, see J.-M. Muller et al., Handbook of
Floating-Point Arithmetic, 2nd ed., chapter 11.
"""

from __future__ import annotations

import math
from typing import Final

from tessera.data import dataclass
from tessera.numerics.elementary import coefficients as table
from tessera.numerics.elementary.exponential import polynomial
from tessera.numerics.elementary.trigonometry import HALF_PI, HALF_PI_LOW
from tessera.numerics.elementary.writer import FORMATS, Value, Writer


@dataclass(frozen=True)
class InverseConstants:
    """Per-format constants; pi/2 in two parts."""

    half_pi: tuple[float, float]
    atan: tuple[float, ...]
    asin: tuple[float, ...]


CONSTANTS: Final = {
    "f32": InverseConstants(
        half_pi=(float.fromhex("0x1.921fb6p+0"), float.fromhex("-0x1.777a5cp-25")),
        atan=table.ATAN_F32,
        asin=table.ASIN_F32,
    ),
    "f64": InverseConstants(half_pi=(HALF_PI, HALF_PI_LOW), atan=table.ATAN_F64, asin=table.ASIN_F64),
}


def half_pi_minus(x: Value, times: float = 1.0) -> Value:
    """The difference `times * pi/2 - x` for times 1 or 2."""
    high, low = CONSTANTS[x.kind].half_pi
    return times * high - (x - times * low)


def atan_of_unit(w: Writer, t: Value) -> Value:
    """The arcus tangent for 0 <= t <= 1."""
    z = t * t
    return w.fma(t * z, polynomial(w, z, CONSTANTS[t.kind].atan), t)


def atan(w: Writer, x: Value) -> Value:
    """The arcus tangent."""
    a = w.magnitude(x)
    far = a.compare("ogt", 1.0)
    near = atan_of_unit(w, w.select(far, 1.0 / a, a))
    return w.intrinsic("copysign", w.select(far, half_pi_minus(near), near), x)


def atan2(w: Writer, y: Value, x: Value) -> Value:
    """The angle of the point (x, y), from -pi to pi; zeros and infinities as in C99, annex F.9.1.4."""
    a, b = w.magnitude(x), w.magnitude(y)
    steep = b.compare("ogt", a)
    below, above = w.select(steep, a, b), w.select(steep, b, a)
    # Two zeros are a point on the axis, two infinities one on the diagonal.
    alike = w.select(above.compare("oeq", 0.0), w.const(x.kind, 0.0), 1.0)
    ratio = w.select(below.compare("oeq", above), alike, below / above)
    near = atan_of_unit(w, ratio)
    angle = w.select(steep, half_pi_minus(near), near)
    left = x.as_int().compare("slt", 0)
    angle = w.select(left, half_pi_minus(angle, 2.0), angle)
    result = w.intrinsic("copysign", angle, y)
    # A steep quotient by NaN took the finite side.
    return w.select(x.compare("uno", y), w.const(x.kind, math.nan), result)


def asin_parts(w: Writer, x: Value) -> tuple[Value, Value]:
    """Whether |x| > 1/2, and asin(|x|) for others, asin(sqrt((1 - |x|) / 2)) for these."""
    a = w.magnitude(x)
    large = a.compare("ogt", 0.5)
    z = w.select(large, w.fma(a, -0.5, 0.5), a * a)
    s = w.select(large, w.intrinsic("sqrt", z), a)
    return large, w.fma(s * z, polynomial(w, z, CONSTANTS[x.kind].asin), s)


def asin(w: Writer, x: Value) -> Value:
    """The arcus sine; NaN outside [-1, 1]."""
    large, part = asin_parts(w, x)
    return w.intrinsic("copysign", w.select(large, half_pi_minus(part + part), part), x)


def acos(w: Writer, x: Value) -> Value:
    """The arcus cosine; NaN outside [-1, 1]."""
    large, part = asin_parts(w, x)
    double = part + part
    left = x.as_int().compare("slt", 0)
    outer = w.select(left, half_pi_minus(double, 2.0), double)
    inner = half_pi_minus((part.as_int() ^ (x.as_int() & FORMATS[x.kind].sign)).as_float())
    return w.select(large, outer, inner)
