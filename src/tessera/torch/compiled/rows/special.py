"""Functions that the table of elementwise functions lacks, as formulas of those that it has."""

from __future__ import annotations

import math
from functools import reduce
from importlib import import_module
from typing import Any

from tessera.numerics.dtypes import DType, f64
from tessera.numerics.functions import rough
from tessera.ops.arrays import torch_dtypes
from tessera.torch.compiled.convert import Converter, F
from tessera.torch.compiled.registry import row
from tessera.torch.compiled.rows.points import check_divisor, cosh, polynomial, sinh

torch: Any = import_module("torch")
HUGE = 1e9
"""Beyond, `x * x + 1` is `x * x`."""
_NEAR = 2.0**-5
"""Arguments of a hyperbolic sine for which two terms are enough of 16-bit floats."""


def _about(dtype: DType, fn: str) -> str:
    """Return a function, or its rough form where results are 16-bit floats.

    It is for formulas that make no relative error larger; others take the function itself.
    """
    return rough(fn) if dtype.bits <= 16 else fn


@row("asinh.default")
def _asinh(c: Converter, x: Any) -> Any:
    log1p, sqrt = (_about(c.result_dtype(), fn) for fn in ("log1p", "sqrt"))

    def formula(f: F, x: Any) -> Any:
        size = f("abs", x)
        square = f("mul", size, size)
        near = f("add", size, f("div", square, f("add", f(sqrt, f("add", square, 1.0)), 1.0)))
        is_far = f("gt", size, HUGE)
        log = f(log1p, f("select", is_far, size, near))
        return f("copysign", f("add", log, f("select", is_far, math.log(2), 0.0)), x)

    return c.elementwise(formula, (x,), "INT_TO_FLOAT")


@row("acosh.default")
def _acosh(c: Converter, x: Any) -> Any:
    log1p, sqrt = (_about(c.result_dtype(), fn) for fn in ("log1p", "sqrt"))

    def formula(f: F, x: Any) -> Any:
        more = f("sub", x, 1.0)
        root = f(sqrt, f("mul", more, f("add", more, 2.0)))
        is_far = f("gt", x, HUGE)
        log = f(log1p, f("select", is_far, x, f("add", more, root)))
        found = f("add", log, f("select", is_far, math.log(2), 0.0))
        return f("select", f("lt", x, 1.0), math.nan, found)

    return c.elementwise(formula, (x,), "INT_TO_FLOAT")


@row("sinh.default", "cosh.default")
def _of_powers(c: Converter, x: Any) -> Any:
    is_odd = "sinh" in str(c.node.target)
    formula = sinh if is_odd else cosh
    if c.result_dtype().bits <= 16:
        formula = _rough_sinh if is_odd else _rough_cosh
    return c.elementwise(formula, (x,), "INT_TO_FLOAT")


def _halves(f: F, x: Any) -> tuple[Any, Any]:
    """Return `e^|x| / 2` and `e^-|x| / 2`; the first has a finite value wherever the hyperbolic functions have one."""
    size, exp = f("abs", x), rough("exp")
    return f(exp, f("sub", size, math.log(2))), f(exp, f("sub", -math.log(2), size))


def _rough_sinh(f: F, x: Any) -> Any:
    near = f("add", x, f("mul", f("mul", x, f("mul", x, x)), 1 / 6))
    far = f("copysign", f("sub", *_halves(f, x)), x)
    return f("select", f("lt", f("abs", x), _NEAR), near, far)


def _rough_cosh(f: F, x: Any) -> Any:
    return f("add", *_halves(f, x))


@row("logaddexp.default", "logaddexp2.default")
def _log_of_sum(c: Converter, a: Any, b: Any) -> Any:
    """Write the logarithm of a sum of exponentials: the larger exponent, and what the smaller one adds."""
    is_binary = "2" in str(c.node.target)
    base, power = (2.0, "exp2") if is_binary else (math.e, _about(c.result_dtype(), "exp"))
    log1p = _about(c.result_dtype(), "log1p")

    def formula(f: F, x: Any, y: Any) -> Any:
        more = f(log1p, f(power, f("neg", f("abs", f("sub", x, y)))))
        more = f("mul", more, 1 / math.log(2)) if is_binary else more
        return f("add", f("maximum", x, y), f("select", f("eq", x, y), math.log(2, base), more))

    return c.elementwise(formula, (a, b), "DEFAULT")


@row("log_sigmoid_forward.default")
def _log_of_sigmoid(c: Converter, x: Any) -> Any:
    """Write the logarithm of a sigmoid, and the exponential in it, which gradients on CPUs take."""
    log1p = _about(c.w_dtype(x), "log1p")

    def power(f: F, x: Any) -> Any:
        return f("exp", f("neg", f("abs", x)))

    def formula(f: F, x: Any) -> Any:
        return f("sub", f("minimum", x, 0.0), f(log1p, power(f, x)))

    kept = c.elementwise(power, (x,), "DEFAULT")
    (_, dims), dtype = c.results_dims(), c.w_dtype(x)
    if dims != c.dims(x):  # GPUs keep nothing
        kept = c.w.broadcast_to(c.w.full(0, dtype), dims)
    return [c.elementwise(formula, (x,), "DEFAULT"), kept]


@row("atanh.default")
def _atanh(c: Converter, x: Any) -> Any:
    log1p = _about(c.result_dtype(), "log1p")

    def formula(f: F, x: Any) -> Any:
        size = f("abs", x)
        half = f("mul", f(log1p, f("div", f("mul", size, 2.0), f("sub", 1.0, size))), 0.5)
        return f("copysign", half, x)

    return c.elementwise(formula, (x,), "INT_TO_FLOAT")


_CENTRE = (
    *(2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087),
    *(-0.00125372503, -0.00417768164, 0.246640727, 1.50140941),
)
_TAIL = (
    *(-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773),
    *(-0.0076224613, 0.00943887047, 1.00167406, 2.83297682),
)
_ROUGH_CENTRE = (0.000185265599, -0.00127368805, -0.00409619231, 0.246668667, 1.50138044)
_ROUGH_TAIL = (-0.00247715157, 0.00687814876, -0.00851898547, 0.00913196895, 1.00180793, 2.83299279)
"""The same within 2^-15, for results that are 16-bit floats."""


@row("erfinv.default")
def _erfinv(c: Converter, x: Any) -> Any:
    """Write the inverse of erf.

    Source: Giles, Approximating the erfinv function, 2011, which has seven digits; f64 takes two of Newton's steps
    more, f32 one, in f64.
    """
    dtype = c.result_dtype()
    log, sqrt = (_about(dtype, fn) for fn in ("log", "sqrt"))
    of_centre, of_tail = (_ROUGH_CENTRE, _ROUGH_TAIL) if dtype.bits <= 16 else (_CENTRE, _TAIL)

    def formula(f: F, x: Any) -> Any:
        w = f("neg", f(log, f("mul", f("sub", 1.0, x), f("add", 1.0, x))))
        centre = polynomial(f, f("sub", w, 2.5), of_centre)
        tail = polynomial(f, f("sub", f(sqrt, w), 3.0), of_tail)
        found = f("mul", f("select", f("lt", w, 5.0), centre, tail), x)
        if dtype.bits > 16:
            for _ in range(dtype.bits // 32):
                slope = f("mul", f("exp", f("neg", f("mul", found, found))), 2 / math.sqrt(math.pi))
                size, given = f("abs", found), f("abs", x)
                near = f("sub", given, f("erf", size))
                rest = f("select", f("lt", given, 0.5), near, f("sub", f("erfc", size), f("sub", 1.0, given)))
                found = f("add", found, f("mul", f("div", rest, slope), f("copysign", 1.0, x)))
        return f("select", f("eq", f("abs", x), 1.0), f("mul", x, math.inf), found)

    given = x if dtype.bits <= 16 else c.w.cast(x, f64)
    return c.w.cast(c.elementwise(formula, (given,), "INT_TO_FLOAT"), dtype)


_SHIFT, _ROUGH_SHIFT = 8, 3
_BERNOULLI = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
"""The k-th Bernoulli number of even index, divided by it."""
_ROUGH_TERMS = 3
_SINE = (-0.178262919, 0.809885919, -1.64485383, 1.0)
"""Of `sin(pi x) / (pi x)` in powers of x^2 from the third down, for 0 to 1/2, within 2^-19."""


@row("digamma.default")
def _digamma(c: Converter, x: Any) -> Any:
    """Write the logarithmic derivative of the gamma function.

    Source: Abramowitz, Stegun, Handbook of mathematical functions, 6.3.5, 6.3.7, 6.3.18.
    """
    is_rough = c.result_dtype().bits <= 16
    log, terms = _about(c.result_dtype(), "log"), _BERNOULLI[: _ROUGH_TERMS if is_rough else None]
    shifted, cotangent = (_as_quotient, _rough_cotangent) if is_rough else (_as_parts, _cotangent)

    def formula(f: F, x: Any) -> Any:
        turned = f("le", x, 0.0)
        y = f("select", turned, f("sub", 1.0, x), x)
        less, z = shifted(f, y)
        inverse = f("div", 1.0, z)
        square = f("mul", inverse, inverse)
        series = f("mul", polynomial(f, square, terms[::-1]), square)
        found = f("sub", f("sub", f("sub", f(log, z), f("mul", inverse, 0.5)), series), less)
        fraction = f("sub", x, f("round", x))
        pole = f("select", f("eq", x, 0.0), f("neg", f("div", 1.0, x)), math.nan)
        mirrored = f("sub", found, cotangent(f, fraction))
        return f("select", turned, f("select", f("eq", fraction, 0.0), pole, mirrored), found)

    return c.elementwise(formula, (x,), "INT_TO_FLOAT")


def _cotangent(f: F, x: Any) -> Any:
    """Return pi times the cotangent of pi x, for x from -1/2 to 1/2."""
    return f("div", math.pi, f("tan", f("mul", x, math.pi)))


def _rough_cotangent(f: F, x: Any) -> Any:
    """Return the same as a quotient of two sines, of the rest of a right angle and of the angle."""
    rest = f("sub", 0.5, f("abs", x))
    over, under = (f("mul", one, polynomial(f, f("mul", one, one), _SINE)) for one in (rest, x))
    return f("mul", f("div", over, under), math.pi)


def _as_parts(f: F, y: Any) -> tuple[Any, Any]:
    """Return the sum of 1 / y and of those of the next numbers, and the number behind them."""
    parts = (f("div", 1.0, f("add", y, float(step))) for step in range(_SHIFT))
    return reduce(lambda total, part: f("add", total, part), parts), f("add", y, float(_SHIFT))


def _as_quotient(f: F, y: Any) -> tuple[Any, Any]:
    """Return the same as one quotient for numbers below 3; others are their own, with nothing before them."""
    is_small = f("lt", y, float(_ROUGH_SHIFT))
    over, under = 1.0, f("minimum", y, float(_ROUGH_SHIFT))
    first = under
    for step in range(1, _ROUGH_SHIFT):
        next_ = f("add", first, float(step))
        over, under = f("add", f("mul", over, next_), under), f("mul", under, next_)
    less = f("select", is_small, f("div", over, under), 0.0)
    return less, f("select", is_small, f("add", y, float(_ROUGH_SHIFT)), y)


@row("polygamma.default")
def _polygamma(c: Converter, order: int, x: Any) -> Any:
    """Write a logarithmic derivative of the gamma function.

    Source: Abramowitz, Stegun, Handbook of mathematical functions, 6.4.6, 6.4.7, 6.4.11, 6.4.12.
    """
    if order == 0:
        return _digamma(c, x)
    dtype = c.result_dtype()

    def formula(f: F, x: Any) -> Any:
        turned = f("le", x, 0.0)  # all parts of others have one sign
        y = f("select", turned, f("sub", 1.0, x), x)
        found = _derivative(f, y, order)
        # The cotangent of pi * x and its derivatives have a period of 1.
        angle = f("mul", f("sub", x, f("round", x)), math.pi)
        wave = polynomial(f, f("div", f("cos", angle), f("sin", angle)), _of_cotangent(order)[::-1])
        wave = f("mul", wave, math.pi ** (order + 1))
        return f("select", turned, f("sub", found if order % 2 == 0 else f("neg", found), wave), found)

    given = x if dtype.bits <= 16 or order == 1 else c.w.cast(x, f64)
    return c.w.cast(c.elementwise(formula, (given,), "INT_TO_FLOAT"), dtype)


def _derivative(f: F, y: Any, order: int) -> Any:
    """Return the derivative of the logarithm of the gamma function of 0.5 or more, one of an order above the first."""
    sign, shift = 1.0 if order % 2 else -1.0, _SHIFT + order
    more: Any = None
    for step in reversed(range(shift)):  # the smallest part first
        part = f("div", 1.0, _whole_power(f, f("add", y, float(step)), order + 1))
        more = part if more is None else f("add", more, part)
    inverse = f("div", 1.0, f("add", y, float(shift)))
    square = f("mul", inverse, inverse)
    factors = [one * math.prod(range(2 * k + 2, 2 * k + 2 + order)) for k, one in enumerate(_BERNOULLI)]
    series = f("mul", polynomial(f, square, factors[::-1]), square)
    found = f("add", f("add", series, float(math.factorial(order - 1))), f("mul", inverse, math.factorial(order) / 2))
    found = f("add", f("mul", found, _whole_power(f, inverse, order)), f("mul", more, float(math.factorial(order))))
    return f("mul", found, sign)


def _whole_power(f: F, x: Any, exponent: int) -> Any:
    return reduce(lambda found, _: f("mul", found, x), range(exponent - 1), x)


def _of_cotangent(order: int) -> list[float]:
    """Return the coefficients, that of the 0th power first, of a derivative of the cotangent in powers of it."""
    found = [0.0, 1.0]
    for _ in range(order):
        slopes = [power * one for power, one in enumerate(found)][1:]
        turned = [0.0, 0.0, *slopes]
        found = [-one - other for one, other in zip([*slopes, 0.0, 0.0], turned, strict=True)]
    return found


@row("hypot.default", "copysign.Tensor", "copysign.Scalar")
def _of_two(c: Converter, a: Any, b: Any) -> Any:
    fn = str(c.node.target).split(".")[1]
    kind = "DEFAULT" if fn == "hypot" else "INT_TO_FLOAT"
    return c.elementwise(lambda f, x, y: f(fn, x, y), (a, b), kind)


@row("nextafter.default")
def _next(c: Converter, a: Any, b: Any) -> Any:
    """Write the number beside another one, on the side of a third.

    Source: Rump, Zimmermann, Boldo, Melquiond, Computing predecessor and successor in rounding to nearest, 2009.
    """
    info = torch.finfo(torch_dtypes()[c.result_dtype().name])
    unit, least, shift = info.eps / 2, info.smallest_normal * info.eps, info.eps**-2

    def formula(f: F, x: Any, y: Any) -> Any:
        up = f("sub", f("select", f("gt", y, x), 1.0, 0.0), 0.5)
        size = f("abs", x)
        large = f("select", f("lt", size, 1.0), f("mul", x, shift), x)  # so that half a step is no subnormal number
        step = f("rounded_mul", f("abs", large), unit * (1 + 2 * unit))
        found = f("add", large, f("copysign", step, up))
        found = f("select", f("lt", size, 1.0), f("mul", found, 1 / shift), found)
        near = f("add", x, f("copysign", least, up))
        found = f("select", f("lt", size, info.smallest_normal * 2), near, found)
        found = f("select", f("isinf", x), f("copysign", info.max, x), found)
        found = f("select", f("eq", found, 0.0), f("copysign", 0.0, x), found)
        found = f("select", f("eq", x, y), y, found)
        return f("select", f("or", f("isnan", x), f("isnan", y)), math.nan, found)

    return c.elementwise(formula, (a, b), "DEFAULT")


@row("fmax.default", "fmin.default")
def _number_of_two(c: Converter, a: Any, b: Any) -> Any:
    fn = "maximum" if "fmax" in str(c.node.target) else "minimum"
    is_float = c.is_float(a, b)

    def formula(f: F, x: Any, y: Any) -> Any:
        found = f(fn, x, y)
        if not is_float:
            return found
        return f("select", f("isnan", x), y, f("select", f("isnan", y), x, found))

    return c.elementwise(formula, (a, b), "DEFAULT")


@row("fmod.Tensor", "fmod.Scalar")
def _rest(c: Converter, a: Any, b: Any) -> Any:
    check_divisor(c, a, b)
    formula = _rest_of_floats if c.is_float(a, b) else _rest_of_integers
    return c.elementwise(formula, c.narrow(a, b), "DEFAULT")


def _rest_of_floats(f: F, x: Any, y: Any) -> Any:
    size = abs(y) if isinstance(y, float) else f("abs", y)
    return f("copysign", f("mod", f("abs", x), size), x)


def _rest_of_integers(f: F, x: Any, y: Any) -> Any:
    rest = f("mod", x, y)
    turned = f("and", f("ne", rest, 0), f("ne", f("lt", rest, 0), f("lt", x, 0)))
    return f("select", turned, f("sub", rest, y), rest)


@row("signbit.default")
def _is_negative(c: Converter, x: Any) -> Any:
    def formula(f: F, x: Any) -> Any:
        return f("lt", f("copysign", 1.0, x), 0.0) if c.is_float(x) else f("lt", x, 0)

    return c.elementwise(formula, (x,), "ALWAYS_BOOL")


_KINDS = ("Tensor", "Tensor_Scalar", "Scalar_Tensor")


@row(*(f"{name}.{kind}" for name in ("bitwise_left_shift", "bitwise_right_shift") for kind in _KINDS))
@row(*(f"__{name}__.{kind}" for name in ("lshift", "rshift") for kind in ("Tensor", "Scalar")))
def _shifted(c: Converter, a: Any, b: Any) -> Any:
    fn = "shr" if "right" in str(c.node.target) or "rshift" in str(c.node.target) else "shl"
    return c.elementwise(lambda f, x, y: f(fn, x, y), (a, b), "DEFAULT")


@row("round.decimals")
def _rounded(c: Converter, x: Any, decimals: int = 0) -> Any:
    ten = float(10 ** abs(decimals))
    there, back = ("mul", "div") if decimals > 0 else ("div", "mul")
    return c.elementwise(lambda f, x: f(back, f("round", f(there, x, ten)), ten), (x,), "DEFAULT")


@row("angle.default")
def _angle(c: Converter, x: Any) -> Any:
    def formula(f: F, x: Any) -> Any:
        return f("select", f("isnan", x), x, f("select", f("lt", x, 0.0), math.pi, 0.0))

    return c.elementwise(formula, (x,), "INT_TO_FLOAT")
