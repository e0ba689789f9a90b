"""Functions whose results become 16-bit floats, in f32 by a GPU's special function unit.

Each is within 2^-14 of its result (`numerics.functions.ROUGH_ERROR`). The unit's results have absolute errors of about
2^-22 where a function passes through zero, which is little beside results from 2^-8 up. Nearer to zero two terms of the
function's series leave out less than 2^-15. The logarithm of the gamma function of negative numbers is within 2^-20
where that is more.

Source: PTX ISA, "Floating Point Instructions: ex2, lg2, rcp, sqrt, div".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from tessera.numerics.elementary import gamma, trigonometry
from tessera.numerics.elementary.exponential import LOG2_E
from tessera.numerics.elementary.logarithm import unit_log2
from tessera.numerics.elementary.power import special_cases
from tessera.numerics.elementary.writer import F32, Value, Writer

F32_EXPONENT: Final = F32.sign - 1 - F32.mantissa_mask
"""The bits of an exponent."""
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


def exp(w: Writer, x: Value) -> Value:
    """The power of two of a product, whose rounding changes it by less than 2^-16."""
    return _power(w, x * LOG2_E)


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


def sqrt(w: Writer, x: Value) -> Value:
    """The square root, by one instruction."""
    return w.unit("sqrt.approx.f32", x)


def power(w: Writer, x: Value, y: Value) -> Value:
    """`2^(y log2 |x|)`: results below 2^-126 may be 0."""
    product = y * unit_log2(w, w.magnitude(x))
    return special_cases(w, x, y, _power(w, product))


_TAIL = (0.330066985, -1.02312408, 0.684524816, 0.367096386, 1.4686801, -1.82723325)
"""Of `log2(erfc(x) e^(x^2) / t)` in powers of `t = 1 / (1 + x / 2)` from the fifth down, for 0 to 9.7."""
_ARC = (0.0641027038, 0.0719011495, 0.166801176)
"""Of `(asin(s) / s - 1) / s^2` in powers of s^2 from the second down, for 0 to 1/2."""


def erfc(w: Writer, x: Value) -> Value:
    """`t 2^(P(t) - x^2 log2(e))`, from 2 for what is below zero."""
    size = w.magnitude(x)
    t = w.unit("rcp.approx.ftz.f32", w.fma(size, 0.5, 1.0))
    found = t * _power(w, w.fma(size * size, -LOG2_E, _polynomial(w, t, _TAIL)))
    return w.select(x.compare("olt", 0.0), 2.0 - found, found)


def _polynomial(w: Writer, x: Value, coefficients: Sequence[float]) -> Value:
    found = w.const(x.kind, coefficients[0])
    for one in coefficients[1:]:
        found = w.fma(found, x, one)
    return found


_SINE = (0.00816328172, -0.166633904)
"""Of `(sin(r) / r - 1) / r^2` in powers of r^2 from the first down, for 0 to pi / 4."""
_COSINE = (0.040458452, -0.499760568)
"""Of `(cos(r) - 1) / r^2`, likewise."""
_TANGENT = (0.0430888049, 0.0413985476, 0.136065066, 0.333154321)
"""Of `(tan(r) / r - 1) / r^2` in powers of r^2 from the third down, likewise."""
_ATAN = (-0.0139550939, 0.0587702394, -0.122515, 0.196183085, -0.333088994)
"""Of `(atan(t) / t - 1) / t^2` in powers of t^2 from the fourth down, for 0 to 1."""


def _reduced(w: Writer, x: Value) -> trigonometry.Reduced:
    return trigonometry.over_range(w, x, trigonometry.reduce_roughly(w, x))


def _sine(w: Writer, reduced: trigonometry.Reduced) -> tuple[Value, Value]:
    """Return sine and cosine of what is left of an angle."""
    r = reduced.r
    z = r * r
    return w.fma(r * z, _polynomial(w, z, _SINE), r), w.fma(z, _polynomial(w, z, _COSINE), 1.0)


def sin(w: Writer, x: Value) -> Value:
    """The sine, by two terms of it or of the cosine."""
    reduced = _reduced(w, w.magnitude(x))
    return trigonometry.choose(w, *_sine(w, reduced), reduced.quadrant, x.as_int() & F32.sign)


def cos(w: Writer, x: Value) -> Value:
    """The cosine, by the same terms."""
    reduced = _reduced(w, w.magnitude(x))
    return trigonometry.choose(w, *_sine(w, reduced), reduced.quadrant + 1, w.const("i32", 0))


def tan(w: Writer, x: Value) -> Value:
    """The tangent; in odd quadrants its reciprocal, with the other sign."""
    reduced = _reduced(w, w.magnitude(x))
    r = reduced.r
    z = r * r
    found = w.fma(r * z, _polynomial(w, z, _TANGENT), r)
    odd = reduced.quadrant & 1
    found = w.select(odd.compare("ne", 0), w.unit("rcp.approx.ftz.f32", found), found)
    return (found.as_int() ^ (odd << 31) ^ (x.as_int() & F32.sign)).as_float()


def _atan_of_unit(w: Writer, t: Value) -> Value:
    z = t * t
    return w.fma(t * z, _polynomial(w, z, _ATAN), t)


def atan(w: Writer, x: Value) -> Value:
    """The arcus tangent; beyond 1 a right angle less that of the reciprocal."""
    size = w.magnitude(x)
    far = size.compare("ogt", 1.0)
    near = _atan_of_unit(w, w.select(far, w.unit("rcp.approx.ftz.f32", size), size))
    return w.intrinsic("copysign", w.select(far, math.pi / 2 - near, near), x)


def atan2(w: Writer, y: Value, x: Value) -> Value:
    """The angle of the point (x, y); zeros and infinities as in C99, annex F.9.1.4."""
    a, b = w.magnitude(x), w.magnitude(y)
    steep = b.compare("ogt", a)
    below, above = w.select(steep, a, b), w.select(steep, b, a)
    alike = w.select(above.compare("oeq", 0.0), w.const("f32", 0.0), 1.0)
    ratio = w.select(below.compare("oeq", above), alike, w.unit("div.full.f32", below, above))
    near = _atan_of_unit(w, ratio)
    angle = w.select(steep, math.pi / 2 - near, near)
    angle = w.select(x.as_int().compare("slt", 0), math.pi - angle, angle)
    return w.select(x.compare("uno", y), w.const("f32", math.nan), w.intrinsic("copysign", angle, y))


def hypot(w: Writer, x: Value, y: Value) -> Value:
    """The length of the vector (x, y), whose longer part is brought near 1 by its exponent."""
    a, b = w.magnitude(x), w.magnitude(y)
    exponent = w.select(b.compare("ogt", a), b, a).as_int() & F32_EXPONENT
    least, most = (w.const("i32", one << 23) for one in (1, 253))
    exponent = w.select(exponent.compare("slt", least), least, exponent)
    exponent = w.select(most.compare("slt", exponent), most, exponent)
    down = (w.const("i32", 254 << 23) - exponent).as_float()
    a, b = a * down, b * down
    root = w.unit("sqrt.approx.ftz.f32", w.fma(a, a, b * b)) * exponent.as_float()
    infinite = a.compare("oeq", math.inf) | b.compare("oeq", math.inf)
    return w.select(infinite, w.const("f32", math.inf), root)


def lgamma(w: Writer, x: Value) -> Value:
    """The logarithm of the gamma function's magnitude, by rough logarithms and a reciprocal."""
    return gamma.lgamma(w, x, gamma.Parts(partial(_logarithm(math.e), w), partial(w.unit, "rcp.approx.ftz.f32")))


def _arc(w: Writer, x: Value) -> tuple[Value, Value]:
    """Return whether |x| > 1/2, and asin(|x|) for others, asin(sqrt((1 - |x|) / 2)) for these."""
    size = w.magnitude(x)
    large = size.compare("ogt", 0.5)
    z = w.select(large, w.fma(size, -0.5, 0.5), size * size)
    s = w.select(large, w.unit("sqrt.approx.ftz.f32", z), size)
    return large, w.fma(s * z, _polynomial(w, z, _ARC), s)


def asin(w: Writer, x: Value) -> Value:
    """The arcus sine; beyond 1/2 a right angle less twice that of `sqrt((1 - |x|) / 2)`."""
    large, part = _arc(w, x)
    return w.intrinsic("copysign", w.select(large, w.fma(part, -2.0, math.pi / 2), part), x)


def acos(w: Writer, x: Value) -> Value:
    """The arcus cosine, by the same parts."""
    large, part = _arc(w, x)
    negative = x.compare("olt", 0.0)
    twice = part + part
    far = w.select(negative, math.pi - twice, twice)
    return w.select(large, far, math.pi / 2 - w.intrinsic("copysign", part, x))


OF_UNIT: Final[dict[str, Callable[..., Value]]] = {
    "acos": acos,
    "asin": asin,
    "atan": atan,
    "atan2": atan2,
    "cos": cos,
    "erfc": erfc,
    "exp": exp,
    "expm1": expm1,
    "hypot": hypot,
    "lgamma": lgamma,
    "log": _logarithm(math.e),
    "log2": _logarithm(2),
    "log10": _logarithm(10),
    "log1p": log1p,
    "pow": power,
    "sigmoid": sigmoid,
    "sin": sin,
    "sqrt": sqrt,
    "tan": tan,
    "tanh": tanh,
}
"""By the function's name."""
