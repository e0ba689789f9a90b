"""Elementwise ops, promoted as PyTorch does: 16-bit floats are computed with in f32."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from math import factorial
from typing import Any

from tessera.numerics import dtypes
from tessera.numerics.dtypes import f32, f64
from tessera.torch.compiled.convert import Converter, F, Formula, is_value
from tessera.torch.compiled.powers import is_exact, power
from tessera.torch.compiled.registry import row
from tessera.torch.compiled.sizes import Unknown


def _plain(fn: str) -> Formula:
    def plain(f: F, *x: Any) -> Any:
        return f(fn, *x)

    return plain


def _sign(f: F, x: Any) -> Any:
    return f("sub", f("select", f("gt", x, 0), 1, 0), f("select", f("lt", x, 0), 1, 0))


def polynomial(f: F, x: Any, coefficients: Sequence[float]) -> Any:
    """Write a polynomial with these coefficients, that of the highest power first."""
    return reduce(lambda total, one: f("add", f("mul", total, x), one), coefficients[1:], coefficients[0])


def sinh(f: F, x: Any) -> Any:
    """Write the hyperbolic sine: near 0 its series.

    Elsewhere the exponential is halved exactly, or as in `cosh`, where it has no finite value.
    """
    square, size = f("mul", x, x), f("abs", x)
    series = reduce(
        lambda total, n: f("add", f("mul", total, square), 1 / factorial(n)), range(15, 2, -2), 1 / factorial(17)
    )
    near = f("add", x, f("mul", f("mul", x, square), series))
    e = f("exp", size)
    half = f("exp", f("mul", size, 0.5))
    beyond = f("mul", f("mul", half, 0.5), half)
    far = f("select", f("isinf", e), beyond, f("sub", f("mul", e, 0.5), f("div", 0.5, e)))
    return f("select", f("lt", size, 1.0), near, f("copysign", far, x))


def cosh(f: F, x: Any) -> Any:
    """Write the hyperbolic cosine.

    Half the exponential is exact; where it has no finite value, the exponential of half the argument is squared.
    """
    size = f("abs", x)
    e = f("exp", size)
    half = f("exp", f("mul", size, 0.5))
    near = f("add", f("mul", e, 0.5), f("div", 0.5, e))
    return f("select", f("isinf", e), f("mul", f("mul", half, 0.5), half), near)


_KINDS = ("Tensor", "Scalar")

FLOATS: dict[str, Formula] = {
    **{
        f"{name}.default": _plain(name)
        for name in (
            *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan"),
            *("asin", "acos", "atan", "tanh", "sigmoid", "erf", "erfc", "lgamma", "atan2"),
        )
    },
    "reciprocal.default": lambda f, x: f("div", 1.0, x),
    "div.Tensor": _plain("div"),
    "true_divide.Tensor": _plain("div"),
    "div.Scalar": _plain("div"),
}
"""Ops whose result is of floating point numbers, of integers too."""

SAME: dict[str, Formula] = {
    **{f"mul.{kind}": _plain("mul") for kind in _KINDS},
    **{f"{name}.default": _plain(name) for name in ("neg", "abs", "maximum", "minimum")},
    "_neg_view.default": _plain("neg"),
    "relu.default": lambda f, x: f("maximum", x, 0),
    "sign.default": _sign,
    "sgn.default": _sign,
}
"""Ops whose result has the dtype of their operands."""

ROUNDING = ("floor", "ceil", "trunc", "round")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def _register() -> None:
    for name, formula in FLOATS.items():
        row(name)(_row(formula, "INT_TO_FLOAT"))
    for name, formula in SAME.items():
        row(name)(_row(formula, "DEFAULT"))
    for name in COMPARISONS:
        row(f"{name}.Tensor", f"{name}.Scalar")(_comparison(name))


def _comparison(name: str) -> Callable[..., Any]:
    def write(c: Converter, a: Any, b: Any) -> Any:
        return c.elementwise(_plain(name), c.narrow(a, b), "ALWAYS_BOOL")

    return write


def _row(formula: Formula, kind: str) -> Callable[..., Any]:
    def write(c: Converter, *values: Any) -> Any:
        return c.elementwise(formula, values, kind)

    return write


_register()


@row("add.Tensor", "add.Scalar", "sub.Tensor", "sub.Scalar")
def _add(c: Converter, a: Any, b: Any, alpha: Any = 1) -> Any:
    fn = str(c.node.target).split(".")[1]

    def formula(f: F, x: Any, y: Any, times: Any = 1) -> Any:
        return f(fn, x, y if times == 1 else f("mul", y, times))

    if fn == "add" and c.is_bool(a, b):
        return c.elementwise(_plain("or"), (a, b), "DEFAULT")
    return c.elementwise(formula, (a, b, alpha), "DEFAULT")


@row("prims.fma.default")
def _multiplied_and_added(c: Converter, a: Any, b: Any, addend: Any) -> Any:
    return c.elementwise(_plain("fma"), (a, b, addend), "DEFAULT")


@row("rsub.Tensor", "rsub.Scalar")
def _rsub(c: Converter, a: Any, b: Any, alpha: Any = 1) -> Any:
    def formula(f: F, x: Any, y: Any, times: Any = 1) -> Any:
        return f("sub", y, x if times == 1 else f("mul", x, times))

    return c.elementwise(formula, (a, b, alpha), "DEFAULT")


@row("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
def _remainder(c: Converter, a: Any, b: Any) -> Any:
    check_divisor(c, a, b)
    return c.elementwise(_plain("mod"), c.narrow(a, b), "DEFAULT")


def check_divisor(c: Converter, a: Any, b: Any) -> None:
    """Leave integers divided by the number 0 to ATen, which raises.

    Raises:
        Unknown: they are.
    """
    if not is_value(b) and b == 0 and not c.is_float(a, b):
        raise Unknown("integers divided by 0")


@row("div.Tensor_mode", "div.Scalar_mode")
def _divided(c: Converter, a: Any, b: Any, rounding_mode: Any = None) -> Any:
    if rounding_mode is None:
        return c.elementwise(_plain("div"), (a, b), "INT_TO_FLOAT")
    if rounding_mode == "floor":
        return _floor_divided(c, a, b)
    check_divisor(c, a, b)
    formula = _towards_zero(c) if c.is_float(a, b) else _towards_zero_of_integers
    return c.elementwise(formula, (a, b), "DEFAULT")


def _towards_zero(c: Converter) -> Formula:
    """Return how quotients are cut off, which takes their correct rounding: 0.5 / 0.1 is 5."""

    def formula(f: F, x: Any, y: Any) -> Any:
        found = c.w.apply("div", *(c.w.cast(one, f64) for one in (x, _own(f, x, y))))
        return f("trunc", c.w.cast(found, c.w_dtype(x)))

    return formula


def _own(f: F, x: Any, y: Any) -> Any:
    """Return a divisor of each element: by one that many share it would be multiplied with the reciprocal."""
    return f("select", f("isnan", x), x, y)


def _towards_zero_of_integers(f: F, x: Any, y: Any) -> Any:
    found = f("floordiv", x, y)
    inexact = f("ne", f("mod", x, y), 0)
    return f("select", f("and", inexact, f("lt", found, 0)), f("add", found, 1), found)


@row("floor_divide.default", "floor_divide.Scalar")
def _floor_divided(c: Converter, a: Any, b: Any) -> Any:
    check_divisor(c, a, b)
    return c.elementwise(_plain("floordiv"), (a, b), "DEFAULT")


@row(*(f"{name}.default" for name in ROUNDING))
def _rounded(c: Converter, x: Any) -> Any:
    fn = str(c.node.target).split(".")[1]
    return c.elementwise(_plain(fn), (x,), "DEFAULT") if c.is_float(x) else c.w.cast(x, c.w_dtype(x))


@row("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar")
def _power(c: Converter, a: Any, b: Any) -> Any:
    if not c.is_float(a) and not c.is_float(b):
        if isinstance(b, int) and b < 0:
            raise Unknown("integers to a negative power, which ATen refuses")
        if isinstance(b, int):
            return c.elementwise(lambda f, x: _by_squares(f, x, b), (a,), "DEFAULT")
        bits = max(c.w_dtype(one).bits for one in (a, b) if is_value(one))
        return c.elementwise(_power_of_integers(min(bits, 64)), (a, b), "DEFAULT")
    # The exponent counts for the dtype, whatever is computed: an integer to the power 0.5 is a float.
    if isinstance(b, int | float) and b in (1, 2, 3, 4):
        return c.elementwise(lambda f, x, _: _times(f, x, int(b)), (a, b), "DEFAULT")
    if isinstance(b, int | float) and b in (-1, -2):
        return c.elementwise(lambda f, x, _: f("div", 1.0, _times(f, x, int(-b))), (a, b), "DEFAULT")
    if isinstance(b, int | float) and b == 0.5:
        return c.elementwise(lambda f, x, _: f("sqrt", x), (a, b), "DEFAULT")
    if isinstance(b, int | float) and b == -0.5:
        return c.elementwise(lambda f, x, _: f("div", 1.0, f("sqrt", x)), (a, b), "DEFAULT")
    if isinstance(b, int | float) and b == 0:
        return c.elementwise(lambda f, x, _: f("select", f("eq", x, x), 1.0, 1.0), (a, b), "DEFAULT")
    by_logarithm = c.result_dtype() == f32 and not is_exact(c)
    return c.elementwise((lambda f, x, y: power(c, f, x, y)) if by_logarithm else _plain("pow"), (a, b), "DEFAULT")


def _by_squares(f: F, x: Any, count: int) -> Any:
    total: Any = None
    while count:
        if count & 1:
            total = x if total is None else f("mul", total, x)
        x, count = f("mul", x, x), count >> 1
    return f("add", f("mul", x, 0), 1) if total is None else total


def _power_of_integers(bits: int) -> Any:
    """Return the power of integers of some bits, by the squares of all bits of the exponent but its sign."""

    def power(f: F, x: Any, y: Any) -> Any:
        total, base, left = f("add", f("mul", y, 0), 1), f("add", x, f("mul", y, 0)), y
        for _ in range(bits - 1):
            total = f("select", f("ne", f("and", left, 1), 0), f("mul", total, base), total)
            base, left = f("mul", base, base), f("shr", left, 1)
        return _beyond(f, x, y, total)

    return power


def _beyond(f: F, x: Any, y: Any, total: Any) -> Any:
    odd = f("select", f("ne", f("and", y, 1), 0), x, 1)
    inverse = f("select", f("eq", x, 1), 1, f("select", f("eq", x, -1), odd, 0))
    return f("select", f("lt", y, 0), inverse, total)


def _times(f: F, x: Any, count: int) -> Any:
    square = x if count == 1 else f("mul", x, x)
    return square if count < 3 else f("mul", square, x if count == 3 else square)


@row("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def _where(c: Converter, condition: Any, a: Any, b: Any) -> Any:
    return c.elementwise(lambda f, x, y: f("select", condition, x, y), (a, b), "DEFAULT")


@row("clamp.default", "clamp.Tensor", "hardtanh.default")
def _clamp(c: Converter, x: Any, low: Any = None, high: Any = None) -> Any:
    if str(c.node.target).startswith("aten.hardtanh"):
        low, high = -1.0 if low is None else low, 1.0 if high is None else high

    def formula(f: F, x: Any, *bounds: Any) -> Any:
        left = iter(bounds)
        x = x if low is None else f("maximum", x, next(left))
        return x if high is None else f("minimum", x, next(left))

    return c.elementwise(formula, (x, *(bound for bound in (low, high) if bound is not None)), "DEFAULT")


@row("clamp_min.default", "clamp_min.Tensor")
def _at_least(c: Converter, x: Any, low: Any) -> Any:
    return c.elementwise(_plain("maximum"), (x, low), "DEFAULT")


@row("clamp_max.default", "clamp_max.Tensor")
def _at_most(c: Converter, x: Any, high: Any) -> Any:
    return c.elementwise(_plain("minimum"), (x, high), "DEFAULT")


@row("gelu.default")
def _gelu(c: Converter, x: Any, approximate: str = "none") -> Any:
    def exact(f: F, x: Any) -> Any:
        return f("mul", f("mul", x, 0.5), f("add", f("erf", f("mul", x, math.sqrt(0.5))), 1.0))

    def by_tanh(f: F, x: Any) -> Any:
        cubic = f("add", x, f("mul", f("mul", f("mul", x, x), x), 0.044715))
        # (1 + tanh(u)) / 2 without the cancellation.
        return f("mul", x, f("sigmoid", f("mul", cubic, 2 * math.sqrt(2 / math.pi))))

    return c.elementwise(by_tanh if approximate == "tanh" else exact, (x,), "DEFAULT")


@row("silu.default")
def _silu(c: Converter, x: Any) -> Any:
    return c.elementwise(lambda f, x: f("mul", x, f("sigmoid", x)), (x,), "DEFAULT")


@row("leaky_relu.default")
def _leaky(c: Converter, x: Any, slope: float = 0.01) -> Any:
    return c.elementwise(lambda f, x: f("select", f("gt", x, 0.0), x, f("mul", x, slope)), (x,), "DEFAULT")


@row("elu.default")
def _elu(c: Converter, x: Any, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
    def formula(f: F, x: Any) -> Any:
        below = f("mul", f("expm1", f("mul", x, input_scale)), alpha * scale)
        return f("select", f("gt", x, 0.0), f("mul", x, scale), below)

    return c.elementwise(formula, (x,), "DEFAULT")


@row("logical_and.default", "logical_or.default", "logical_xor.default")
def _logical(c: Converter, a: Any, b: Any) -> Any:
    fn = str(c.node.target).split("_")[1].split(".")[0]
    return c.w.apply(fn, *(c.truth(value) for value in (a, b)))


@row("logical_not.default")
def _not(c: Converter, x: Any) -> Any:
    return c.w.apply("not", c.truth(x))


@row(*(f"bitwise_{fn}.{kind}" for fn in ("and", "or", "xor") for kind in ("Tensor", "Scalar")))
def _bitwise(c: Converter, a: Any, b: Any) -> Any:
    fn = str(c.node.target).split("_")[1].split(".")[0]
    return c.elementwise(_plain(fn), (a, b), "DEFAULT")


@row("bitwise_not.default")
def _bitwise_not(c: Converter, x: Any) -> Any:
    return c.elementwise(_plain("not"), (x,), "DEFAULT")


@row("isnan.default", "isinf.default", "isfinite.default")
def _classified(c: Converter, x: Any) -> Any:
    fn = str(c.node.target).split(".")[1]
    if c.is_float(x):
        return c.w.apply(fn, x)
    return c.w.broadcast_to(c.w.full(fn == "isfinite", dtypes.boolean), c.dims(x))


@row("clone.default", "alias.default", "detach.default", "lift_fresh_copy.default", "contiguous.default")
@row("prims.copy_strided.default")
def _copied(c: Converter, x: Any, lies: Any = None, *, memory_format: Any = None) -> Any:
    return c.copied(x)


@row("copy.default")
def _overwritten(c: Converter, x: Any, source: Any, non_blocking: bool = False) -> Any:
    wanted = c.w_dtype(x)
    found = c.truth(source) if wanted.kind == "bool" else source if is_value(source) else c.ready(source, wanted)
    return c.copied(c.w.broadcast_to(c.w.as_array(found, wanted), c.dims(x)))


@row("_to_copy.default")
def _converted(
    c: Converter,
    x: Any,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    non_blocking: bool = False,
    memory_format: Any = None,
) -> Any:
    wanted = c.result_dtype()
    if wanted.kind == "bool":
        return c.truth(x)
    if wanted == c.w_dtype(x):
        return c.copied(x)
    if c.original() not in ("None", str(c.node.target)):  # by PyTorch, around an op's parts
        return c.w.cast(x, wanted, wanted.is_float)
    c.keep_rounding(x)
    return c.w.cast(x, wanted)


@row("prims.convert_element_type.default")
def _cast(c: Converter, x: Any, dtype: Any) -> Any:
    return c.truth(x) if c.result_dtype().kind == "bool" else c.w.cast(x, c.result_dtype())
