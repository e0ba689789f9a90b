"""Vector exponentials: exp, exp2, expm1, tanh, erf.

The argument is reduced to |r| <= ln(2)/2 by Cody and Waite's method (W. J. Cody, W. Waite, Software Manual
for the Elementary Functions, 1980) with a two-part ln 2 and fused multiply-adds, see also J.-M. Muller et
al., Handbook of Floating-Point Arithmetic, 2nd ed., chapter 11. tanh and erf are odd polynomials near zero;
further out tanh is 1 - 2 / (e^2|x| + 1), and erf is 1 - 2^P(|x|), where P approximates log2(erfc).
"""

from __future__ import annotations

from typing import Final

from tessera.data import dataclass
from tessera.numerics.elementary import coefficients as table
from tessera.numerics.elementary.writer import FORMATS, UNIT, Format, Value, Writer

TANH_SPLIT: Final = 0.65625
LOG2_E: Final = float.fromhex("0x1.71547652b82fep+0")
# Arguments whose power of two has the exponent field 0, which makes it 0: the fast forms go no lower.
EXP_FLUSHED: Final = -88.0
EXP2_FLUSHED: Final = -127.0
# Of `vrange`: the operand of the smaller magnitude, with the sign of the first.
LEAST_MAGNITUDE: Final = "2"


@dataclass(frozen=True)
class ExpConstants:
    """Per-format constants of the exponentials.

    `ln2_high` is rounded down, so that `ln2_low` is positive: an infinite exponent then gives no inf - inf.
    """

    ln2_high: float
    ln2_low: float
    log2e_low: float
    exp_low: float
    exp_high: float
    exp2_low: float
    exp2_high: float
    expm1_low: float
    tanh_high: float
    tanh_small: tuple[float, ...]
    tiny: float
    erf_split: float
    erf_high: float
    expm1: tuple[float, ...]
    exp2: tuple[float, ...]
    erf_small: tuple[float, ...]
    erf_large: tuple[float, ...]


CONSTANTS: Final = {
    "f32": ExpConstants(
        ln2_high=float.fromhex("0x1.62e42ep-1"),
        ln2_low=float.fromhex("0x1.efa39ep-25"),
        log2e_low=float.fromhex("0x1.4ae0cp-26"),
        exp_low=-104.0,
        exp_high=89.0,
        exp2_low=-151.0,
        exp2_high=129.0,
        expm1_low=-17.5,
        tanh_high=9.25,
        tanh_small=table.TANH_F32,
        tiny=2.0**-26,
        erf_split=0.9375,
        erf_high=3.95,
        expm1=table.EXPM1_F32,
        exp2=table.EXP2_F32,
        erf_small=table.ERF_SMALL_F32,
        erf_large=table.ERF_LARGE_F32,
    ),
    "f64": ExpConstants(
        ln2_high=float.fromhex("0x1.62e42fefa39efp-1"),
        ln2_low=float.fromhex("0x1.abc9e3b39803fp-56"),
        log2e_low=float.fromhex("0x1.777d0ffda0d24p-56"),
        exp_low=-746.0,
        exp_high=710.0,
        exp2_low=-1076.0,
        exp2_high=1025.0,
        expm1_low=-37.5,
        tanh_high=19.5,
        tanh_small=table.TANH_F64,
        tiny=2.0**-55,
        erf_split=1.0,
        erf_high=5.95,
        expm1=table.EXPM1_F64,
        exp2=table.EXP2_F64,
        erf_small=table.ERF_SMALL_F64,
        erf_large=table.ERF_LARGE_F64,
    ),
}


def nearest_integer(w: Writer, x: Value, factor: float = 1.0, above: int = 0) -> tuple[Value, Value]:
    """Round `x * factor` to an integer n, for |n| + above < 2^(mantissa - 2).

    Returns:
        n as a float, and an integer whose low bits are those of n + `above` in two's complement: shifted left by the
        mantissa size it is n + `above` in the exponent field, since the rest of the rounding constant falls out.
    """
    magic = FORMATS[x.kind].round_magic + above
    shifted = x + magic if factor == 1.0 else w.fma(x, factor, magic)
    return shifted - magic, shifted.as_int()


def power_of_two(form: Format, count: Value) -> Value:
    """2^n from n + bias, as `nearest_integer` gives it, for normal exponents (one above gives inf, one below 0).

    The bias is part of what rounds, not added here: adding a constant to a shifted integer, once for each register of
    a thread, would take LLVM's strength reduction time that grows with the square of their number.
    """
    return (count << form.mantissa).as_float()


def biases(form: Format, one_factor: bool) -> int:
    """Return what to have `nearest_integer` add for one `power_of_two`, or for the two of `scale`."""
    return form.bias if one_factor else 2 * form.bias


def scale(w: Writer, p: Value, n: Value, count: Value, features: frozenset[str]) -> Value:
    """Multiply p by 2^n and round once, for 0.5 < p < 2 and n down to twice the least exponent.

    Args:
        w: the function.
        p: the factor.
        n: the exponent as a float.
        count: n plus twice the bias, as `nearest_integer` gives it.
        features: what the CPU has.
    """
    suffix = avx512_suffix(w.width, p.kind, features)
    if suffix:
        return w.avx512("mask.scalef", (p, n), (), suffix)
    # Two factors: the first product is exact, so that a subnormal result is rounded once.
    form = FORMATS[p.kind]
    half = count >> 1
    return p * power_of_two(form, half) * power_of_two(form, count - half)


def avx512_suffix(width: int, elem: str, features: frozenset[str]) -> str:
    """The suffix of the AVX-512 intrinsics for this vector type, empty when the CPU has none.

    A vector of several registers takes them one by one.
    """
    size = width * (32 if elem == "f32" else 64)
    if not {"avx512f", "avx512dq"} <= features:
        return ""
    if size % 512 == 0 or (size in {128, 256} and "avx512vl" in features):
        return f"{'ps' if elem == 'f32' else 'pd'}.{min(size, 512)}"
    return ""


def reciprocal(w: Writer, d: Value, suffix: str) -> Value:
    """1 / d for a positive normal or infinite d, to 0.6 ULP; `suffix` is empty for a division.

    The CPU's estimate of 14 bits and one step of Newton's take a quarter of a division's time.
    """
    if not suffix:
        return 1.0 / d
    estimate = w.avx512("rcp14", (d,), (), suffix)
    error = w.fma(w.negate(d), estimate, 1.0)
    # Of an infinite divisor the error is NaN, which this comparison takes for anything small: 0 stays 0.
    error = w.select(error.compare("olt", 0.5), error, 0.5)
    return w.fma(estimate, error, estimate)


def subtract_ln2(w: Writer, x: Value, n: Value) -> tuple[Value, Value]:
    """The difference x - n * ln 2: exact for the high part of ln 2 alone, and rounded for both."""
    constants = CONSTANTS[x.kind]
    exact = w.fma(n, -constants.ln2_high, x)
    return exact, w.fma(n, -constants.ln2_low, exact)


def polynomial(w: Writer, x: Value, coefficients: tuple[float, ...]) -> Value:
    """Horner for the short polynomials of f32 (throughput counts), Estrin for f64 (latency does).

    The last step is Horner's in both: it rounds least.
    """
    if x.kind == "f32":
        return w.horner(x, coefficients)
    return w.fma(x, w.estrin(x, coefficients[1:]), coefficients[0])


def exp(w: Writer, x: Value, features: frozenset[str], fast: bool = False) -> Value:
    """e^x as 2^(x log2 e), with log2 e in two parts; `fast` is for f32 alone."""
    constants = CONSTANTS[x.kind]
    bound = avx512_suffix(w.width, x.kind, features)
    if not bound:
        low = EXP_FLUSHED if fast else constants.exp_low
        x = w.minimum(w.maximum(x, low), constants.exp_high)
    n, count = nearest_integer(w, x, LOG2_E, biases(FORMATS[x.kind], fast and not bound))
    r = w.fma(x, constants.log2e_low, w.fma(x, LOG2_E, w.negate(n)))
    return power(w, within_one(w, r, bound), n, count, features, fast)


def exp2(w: Writer, x: Value, features: frozenset[str], fast: bool = False) -> Value:
    """2^x; `fast` is for f32 alone."""
    constants = CONSTANTS[x.kind]
    bound = avx512_suffix(w.width, x.kind, features)
    if not bound:
        low, high = (EXP2_FLUSHED, 128.0) if fast else (constants.exp2_low, constants.exp2_high)
        x = w.minimum(w.maximum(x, low), high)
    n, count = nearest_integer(w, x, above=biases(FORMATS[x.kind], fast and not bound))
    return power(w, within_one(w, x - n, bound), n, count, features, fast)


def within_one(w: Writer, r: Value, suffix: str) -> Value:
    """Bring a remainder into [-1, 1] by one instruction where the CPU has it; it takes NaN to 1 or -1.

    In place of two bounds on the argument: beyond the range, where the remainder means nothing, any positive power
    will do, since `scale` makes infinity, 0 or NaN of it by n alone.
    """
    return w.avx512("mask.range", (r, w.const(r.kind, 1.0)), (LEAST_MAGNITUDE,), suffix) if suffix else r


def power(w: Writer, r: Value, n: Value, count: Value, features: frozenset[str], fast: bool) -> Value:
    """2^(r + n) for |r| <= 1/2."""
    p = w.fma(r, polynomial(w, r, CONSTANTS[r.kind].exp2), 1.0)
    if fast and not avx512_suffix(w.width, p.kind, features):
        return p * power_of_two(FORMATS[p.kind], count)
    return scale(w, p, n, count, features)


def expm1(w: Writer, x: Value) -> Value:
    """e^x - 1 = 2^n * (e^r - 1) + (2^n - 1), with the two large terms added exactly."""
    constants, form = CONSTANTS[x.kind], FORMATS[x.kind]
    clamped = w.minimum(w.maximum(x, constants.expm1_low), constants.exp_high)
    # Everything is halved until the end: 2^n itself overflows before the result does.
    n, count = nearest_integer(w, clamped, LOG2_E, form.bias - 1)
    exact, r = subtract_ln2(w, clamped, n)
    lost = w.fma(n, -constants.ln2_low, exact - r)
    half = power_of_two(form, count)
    base = half - 0.5
    total = w.fma(half, r, base)
    rest = w.fma(half, r, base - total)
    tail = w.fma(half, w.fma(r * r, polynomial(w, r, constants.expm1), lost), rest)
    result = total + tail
    result = result + result
    return w.select(w.magnitude(x).compare("olt", constants.tiny), x, result)


def sigmoid(w: Writer, x: Value, features: frozenset[str], fast: bool) -> Value:
    """1 / (1 + e^-x)."""
    below = exp(w, w.negate(x), features, fast) + 1.0
    return reciprocal(w, below, avx512_suffix(w.width, x.kind, features) if fast else "")


def tanh(w: Writer, x: Value, features: frozenset[str], fast: bool) -> Value:
    """The hyperbolic tangent: an odd polynomial near zero, 1 - 2 / (e^2|x| + 1) beyond."""
    constants, form = CONSTANTS[x.kind], FORMATS[x.kind]
    a = w.magnitude(x)
    z = x * x
    small = w.fma(a * z, polynomial(w, z, constants.tanh_small), a)
    if UNIT in features:
        denominator = w.unit("ex2.approx.ftz.f32", a * (2 * LOG2_E)) + 1.0
        large = w.fma(w.unit("rcp.approx.ftz.f32", denominator), -2.0, 1.0)
        return w.intrinsic("copysign", w.select(a.compare("olt", TANH_SPLIT), small, large), x)
    bounded = w.minimum(a, constants.tanh_high)
    n, count = nearest_integer(w, bounded, 2 * LOG2_E, form.bias)
    # One constant is enough: an error of e^2a counts for 2 e^2a / (e^2a + 1)^2 <= 0.4 of it.
    r = w.fma(bounded, 2 * LOG2_E, w.negate(n))
    p = w.fma(r, polynomial(w, r, constants.exp2), 1.0)
    denominator = w.fma(power_of_two(form, count), p, 1.0)
    inverse = reciprocal(w, denominator, avx512_suffix(w.width, x.kind, features) if fast else "")
    large = w.fma(inverse, -2.0, 1.0)
    return w.intrinsic("copysign", w.select(a.compare("olt", TANH_SPLIT), small, large), x)


def erf(w: Writer, x: Value, features: frozenset[str]) -> Value:
    """The error function."""
    constants, form = CONSTANTS[x.kind], FORMATS[x.kind]
    a = w.magnitude(x)
    small = w.fma(a, polynomial(w, x * x, constants.erf_small), a)
    y = polynomial(w, w.minimum(a, constants.erf_high), constants.erf_large)
    if UNIT in features:
        large = 1.0 - w.unit("ex2.approx.ftz.f32", y)
        return w.intrinsic("copysign", w.select(a.compare("olt", constants.erf_split), small, large), x)
    # -2^n has the sign bit set: 1 - 2^n * p in one rounding.
    sign = 2 * (form.bias + 1)
    n, count = nearest_integer(w, y, above=form.bias + sign)
    r = y - n
    p = w.fma(r, polynomial(w, r, constants.exp2), 1.0)
    large = w.fma(power_of_two(form, count), p, 1.0)
    return w.intrinsic("copysign", w.select(a.compare("olt", constants.erf_split), small, large), x)
