"""NumPy's functions of elements on traced arrays that others make up."""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import index
from typing import Any

import numpy as _numpy

from tessera.errors import TypeMismatchError, caller_location
from tessera.graph.functions import is_traced, numpy, several, trace_of, written
from tessera.graph.sizes import is_whole
from tessera.graph.traced import Array
from tessera.ir.graph.types import array_type
from tessera.numerics.dtypes import f32

np: Any = _numpy  # whose functions take traced arrays, too


def _kind(x: Any) -> str:
    """Return the kind of a traced array's dtype: `float`, `int`, `uint` or `bool`."""
    return array_type(x.ssa).dtype.kind


def _floats(*values: Any) -> list[Array]:
    """Return operands of one float dtype, as functions of floats take them."""
    trace = trace_of(values)
    with trace.at_caller() as writer:
        given = trace.operands(values)
        common = writer.common(given)
        dtype = common if common.is_float else f32
        return [Array(trace, writer.as_array(value, dtype)) for value in given]


written(np.positive)(np.copy)
written(np.conjugate)(np.copy)


@numpy(np.real)
def real(val: Any) -> Any:
    """Return the array itself: there are no complex numbers."""
    return val


# Truth values


def _true(x: Any) -> Any:
    """Return whether numbers are not zero."""
    is_truth = isinstance(x, bool) or getattr(x, "dtype", None) == np.bool_
    return x if is_truth else np.not_equal(x, 0)


@written(np.logical_not)
def _logical_not(x: Any) -> Any:
    return np.invert(_true(x))


def _logical(bitwise: Any) -> Callable[..., Any]:
    def write(x: Any, y: Any) -> Any:
        return bitwise(_true(x), _true(y))

    return write


written(np.logical_and)(_logical(np.bitwise_and))
written(np.logical_or)(_logical(np.bitwise_or))
written(np.logical_xor)(_logical(np.bitwise_xor))


@written(np.signbit)
def _signbit(x: Any) -> Any:
    return np.copysign(1.0, x) < 0


@numpy(np.isposinf)
def isposinf(x: Any, out: Any = None) -> Any:
    """Return where elements are infinite and positive."""
    return np.equal(x, np.inf)


@numpy(np.isneginf)
def isneginf(x: Any, out: Any = None) -> Any:
    """Return where elements are infinite and negative."""
    return np.equal(x, -np.inf)


def _exact(x: Any) -> Any:
    """Return integers as f64, in which NumPy compares them with a tolerance; floats as they are."""
    found = trace_of(x).array(x) if is_traced(x) else np.asarray(x)
    return found if found.dtype.kind not in "iub" else found.astype(np.float64)


@numpy(np.isclose)
def isclose(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Any:
    """Return whether elements are equal but for a tolerance."""
    first, second = _exact(a), _exact(b)
    near = np.logical_and(np.isfinite(second), np.absolute(first - second) <= atol + rtol * np.absolute(second))
    near = np.logical_or(near, first == second)
    return np.logical_or(near, np.logical_and(first != first, second != second)) if equal_nan else near


@numpy(np.allclose)
def allclose(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Any:
    """Return whether all elements are equal but for a tolerance."""
    return np.all(isclose(a, b, rtol, atol, equal_nan))


@numpy(np.array_equal)
def array_equal(a1: Any, a2: Any, equal_nan: bool = False) -> Any:
    """Return whether arrays have one shape and equal elements."""
    trace = trace_of(a1, a2)
    first, second = trace.array(a1), trace.array(a2)
    if first.ndim != second.ndim or any(one != other for one, other in zip(first.shape, second.shape, strict=True)):
        return False
    same = first == second
    return np.all(np.logical_or(same, np.logical_and(first != first, second != second)) if equal_nan else same)


# Whole numbers


def _whole(fn: str) -> Callable[..., Any]:
    def write(x: Any) -> Any:
        found = trace_of(x).array(x)
        return found.apply(fn, x) if _kind(found) == "float" else np.copy(x)

    return write


written(np.floor)(_whole("floor"))
written(np.ceil)(_whole("ceil"))
written(np.trunc)(_whole("trunc"))


@numpy(np.fix)
def fix(x: Any, out: Any = None) -> Any:
    """Return numbers without their fractions."""
    return np.trunc(x)


@numpy(np.round)
def round_(a: Any, decimals: int = 0, out: Any = None) -> Any:
    """Return numbers rounded to so many digits, halves to even ones."""
    scale = 10 ** abs(index(decimals))
    if _kind(a) != "float":
        return np.copy(a) if decimals >= 0 else _to_multiple(a, scale)
    if not decimals:
        return np.rint(a)
    scale = float(scale)
    return np.rint(a * scale) / scale if decimals > 0 else np.rint(a / scale) * scale


numpy(np.around)(round_)


def _to_multiple(x: Any, scale: int) -> Any:
    """Return integers rounded to multiples of a number, halves to even ones."""
    wide = x.astype(np.int64)
    low = wide // scale
    rest = wide - low * scale
    up = (rest * 2 > scale) | ((rest * 2 == scale) & (low % 2 == 1))
    return ((low + up) * scale).astype(x.dtype)


@written(np.modf)
def _modf(x: Any) -> Any:
    (value,) = _floats(x)
    whole = np.trunc(value)
    return np.copysign(np.where(np.isinf(value), 0.0, value - whole), value), whole


@written(np.divmod)
def _divmod(x: Any, y: Any) -> Any:
    return x // y, x % y


@written(np.fmod)
def _fmod(x: Any, y: Any) -> Any:
    rest = np.remainder(x, y)
    if _kind(rest) != "float":
        return np.where((rest != 0) & ((rest < 0) != (x < 0)), rest - y, rest)
    return np.copysign(np.remainder(np.absolute(x), np.absolute(y)), x)


# Powers


@written(np.square)
def _square(x: Any) -> Any:
    return x * x


@written(np.reciprocal)
def _reciprocal(x: Any) -> Any:
    if _kind(x) == "float":
        return 1 / x
    return np.where((x == 1) | (x + 1 == 0), x, 0)


@written(np.float_power)
def _float_power(x: Any, y: Any) -> Any:
    return trace_of(x, y).array(x).astype(np.float64) ** y


@written(np.power)
def power(x: Any, y: Any) -> Any:
    """Return powers. Those of integers are integers, which keep their low bits.

    Raises:
        TypeMismatchError: `bad-argument` for integers to a negative number.
    """
    trace = trace_of(x, y)
    if is_whole(y):
        base = trace.array(x)
        if _kind(base) != "float":
            return _power_of_integers(base, int(y))
        if 1 <= y <= 16:
            return _by_squares(base, int(y))
    with trace.at_caller() as writer:
        given = trace.operands((x, y))
        common = writer.common(given)
        if common.is_float:
            return trace.elementwise("pow", (x, y))
        base, exponent = (Array(trace, writer.as_array(value, common)) for value in given)
    return _powers_of_integers(base, exponent, common.bits)


def _power_of_integers(base: Any, exponent: int) -> Any:
    if exponent < 0:
        raise TypeMismatchError(
            f"integers to the power {exponent}",
            code="bad-argument",
            location=caller_location(),
            help="cast to a float first, or write x**-1.0",
        )
    base = base.astype(np.int32) if _kind(base) == "bool" else base
    return _by_squares(base, exponent) if exponent else np.ones_like(base)


def _by_squares(base: Any, exponent: int) -> Any:
    if exponent == 1:
        return base
    half = _by_squares(base, exponent // 2)
    square = half * half
    return square * base if exponent % 2 else square


def _powers_of_integers(base: Any, exponent: Any, bits: int) -> Any:
    """Return powers by the bits of exponents, none of which is negative."""
    if bits == 1:
        return power(base.astype(np.int32), exponent.astype(np.int32))
    found: Any = np.ones_like(base)
    signed = _kind(exponent) == "int"
    for bit in range(bits - signed):
        found = np.where(exponent & (1 << bit) != 0, found * base, found)
        base = base * base
    return found


# Others


@written(np.fabs)
def _fabs(x: Any) -> Any:
    return np.absolute(*_floats(x))


@written(np.sign)
def _sign(x: Any) -> Any:
    return np.where(x > 0, 1, 0 - np.where(x < 0, 1, x * 0))  # -1 is no unsigned number


@written(np.heaviside)
def _heaviside(x: Any, half: Any) -> Any:
    return np.where(x != x, x, np.where(x == 0, half, (x > 0) * 1.0))


@written(np.fmax)
def _fmax(x: Any, y: Any) -> Any:
    return np.where(x != x, y, np.where(y != y, x, np.maximum(x, y)))


@written(np.fmin)
def _fmin(x: Any, y: Any) -> Any:
    return np.where(x != x, y, np.where(y != y, x, np.minimum(x, y)))


@written(np.logaddexp)
def _logaddexp(x: Any, y: Any) -> Any:
    return _added_logarithms(np.exp, 1.0, *_floats(x, y))


@written(np.logaddexp2)
def _logaddexp2(x: Any, y: Any) -> Any:
    return _added_logarithms(np.exp2, 1 / math.log(2.0), *_floats(x, y))


def _added_logarithms(exp: Any, scale: float, x: Any, y: Any) -> Any:
    apart = np.where(x == y, 0.0, -np.absolute(x - y))  # infinities of one sign are not apart
    return np.maximum(x, y) + np.log1p(exp(apart)) * scale


def _scaled(factor: float) -> Callable[..., Any]:
    def write(x: Any) -> Any:
        return x * factor

    return write


for _ufunc in (np.deg2rad, np.radians):
    written(_ufunc)(_scaled(math.pi / 180))
for _ufunc in (np.rad2deg, np.degrees):
    written(_ufunc)(_scaled(180 / math.pi))


@numpy(np.angle)
def angle(z: Any, deg: bool = False) -> Any:
    """Return the angles of real numbers as complex ones: 0, and half a turn of negative ones."""
    (x,) = _floats(z)
    return np.where(x < 0, 180.0 if deg else math.pi, x * 0)


@numpy(np.sinc)
def sinc(x: Any) -> Any:
    """Return sin(pi x) / (pi x), 1 at 0."""
    y = _floats(x)[0] * math.pi
    square = y * y
    series: Any = 1.0
    for n in range(20, 0, -2):  # the sum about 0, where a quotient has no derivatives
        series = 1 - square / (n * (n + 1)) * series
    far = np.where(square < 1, 1.0, y)
    return np.where(square < 1, series, np.sin(far) / far)


_FAR = 80.0
"""Beyond it exp(-x) is nothing beside exp(x), which is still finite in f32."""


def _hyperbolic(near: Callable[[Any], Any], is_odd: bool) -> Callable[..., Any]:
    """Return a function of which one half is exp(x), where that alone might be infinite."""

    def write(x: Any) -> Any:
        (value,) = _floats(x)
        size = np.absolute(value)
        is_far = size > _FAR
        root = np.exp(np.where(is_far, size, 0.0) / 2)
        half = root / 2 * root
        return np.where(is_far, np.copysign(half, value) if is_odd else half, near(np.where(is_far, 0.0, value)))

    return write


written(np.sinh)(_hyperbolic(lambda x: (np.expm1(x) - np.expm1(-x)) / 2, True))
written(np.cosh)(_hyperbolic(lambda x: (np.exp(x) + np.exp(-x)) / 2, False))
_LARGE = 1e9
"""Beyond it x * x + 1 is x * x."""


def _odd(of_size: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return an odd function by what it is of numbers that are not negative; derivatives at 0 are those from there."""

    def write(x: Any) -> Any:
        (value,) = _floats(x)
        sign = np.where(value < 0, -1.0, 1.0)
        return of_size(value * sign) * sign

    return write


@written(np.arcsinh)
@_odd
def _arcsinh(size: Any) -> Any:
    is_far = size > _LARGE
    near = np.where(is_far, 1.0, size)
    square = near * near
    found = np.log1p(near + square / (np.sqrt(square + 1) + 1))
    return np.where(is_far, np.log(np.where(is_far, size, 1.0)) + math.log(2), found)


@written(np.arctanh)
@_odd
def _arctanh(size: Any) -> Any:
    return np.log1p(size * 2 / (1 - size)) / 2


@written(np.arccosh)
def _arccosh(x: Any) -> Any:
    (value,) = _floats(x)
    is_far = value > _LARGE
    more = np.where(is_far, 1.0, value) - 1
    near = np.where(value < 1, math.nan, np.log1p(more + np.sqrt(more * (more + 2))))
    return np.where(is_far, np.log(np.where(is_far, value, 1.0)) + math.log(2), near)


# Choices


@numpy(np.select)
def select(condlist: Any, choicelist: Any, default: Any = 0) -> Any:
    """Return elements of the first choice whose condition holds."""
    found = default
    for condition, choice in reversed(list(zip(condlist, choicelist, strict=True))):
        found = np.where(condition, choice, found)
    return found


@numpy(np.choose)
def choose(a: Any, choices: Any, out: Any = None, mode: str = "raise") -> Any:
    """Return elements of the array that a number names; what a number outside names has no defined value."""
    count = len(choices)
    number = np.clip(a, 0, count - 1) if mode == "clip" else a % count if mode == "wrap" else a
    found = choices[0]
    for at in range(1, count):
        found = np.where(np.equal(number, at), choices[at], found)
    trace = trace_of(a, choices)
    return np.broadcast_arrays(trace.array(found), trace.array(a))[0]


@numpy(np.piecewise)
def piecewise(x: Any, condlist: Any, funclist: Any, *args: Any, **kw: Any) -> Any:
    """Return of each element the function whose condition holds, the last of those that do."""
    trace = trace_of(x, condlist)
    value = trace.array(x)
    given: list[Any] = list(several(condlist))
    functions = list(funclist)
    found = np.zeros_like(value)
    if len(functions) == len(given) + 1:
        found = _filled(functions.pop(), value, args, kw)
    for condition, function in zip(given, functions, strict=True):
        found = np.where(condition, _filled(function, value, args, kw), found)
    return found


def _filled(function: Any, x: Any, args: Any, kw: Any) -> Any:
    found = function(x, *args, **kw) if callable(function) else np.full_like(x, function)
    return trace_of(x).array(found).astype(x.dtype)
