"""Compiles elementwise functions, casts and the composites built from them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tessera.errors import TypeMismatchError
from tessera.frontend import tile
from tessera.frontend.builder import Builder
from tessera.frontend.constants import static_call
from tessera.frontend.convert import (
    apply,
    cast_to,
    check_rounding,
    constant,
    default_element,
    operand,
    to_policy,
)
from tessera.frontend.expressions import is_runtime
from tessera.frontend.registry import attribute, compiles, method
from tessera.frontend.values import BoundMethod, Scalar, Shared, Tile, Value, is_number, show, wrap
from tessera.ir.tile.types import element_of
from tessera.ir.types import element_type
from tessera.numerics import dtypes
from tessera.numerics.dtypes import DType, Policy
from tessera.numerics.functions import FUNCTIONS
from tessera.numerics.normal import NORMAL_TAIL, NORMAL_TAIL_END

_COMPILED_ELSEWHERE = ("select", "pow", "byte_perm", "rotl", "rotr")


def _register_table() -> None:
    """Every function of `numerics.functions` that `ts.tile` has under the same name needs no more than its name."""
    for name in FUNCTIONS:
        declared = getattr(tile, name, None)
        if declared is not None and name not in _COMPILED_ELSEWHERE:
            compiles(declared)(_plain(name))


def _plain(name: str) -> Callable[..., Any]:
    def compile_function(b: Builder, *args: Any) -> Any:
        return apply(b, name, *args)

    return compile_function


_register_table()
compiles(tile.rint)(_plain("round"))


@compiles(tile.cast)
def convert(b: Builder, x: Any, dtype: Any) -> Any:
    """Return `x` in another dtype."""
    policy = to_policy(dtype, "cast")
    check_rounding(policy)
    ready = operand(b, x, "cast")
    element = element_type(policy.dtype)
    if not isinstance(ready, Value):
        return wrap(constant(b, _fitting(ready, policy.dtype), element))
    kept = None if policy == Policy(policy.dtype.storage) else policy
    return wrap(cast_to(b, ready.ssa, element, policy.saturate), kept)


def _fitting(value: bool | int | float, dtype: DType) -> bool | int | float:
    """Return what a number becomes as one of a dtype, as if it were known only when the kernel runs."""
    if not dtype.is_int:
        return value
    signed = dtype.kind == "int"
    low = -(1 << dtype.bits - 1) if signed else 0
    if not isinstance(value, float):
        return (value - low) % (1 << dtype.bits) + low
    if math.isnan(value):
        return 0
    high = low + (1 << dtype.bits) - 1
    return int(min(max(value, low), high)) if math.isfinite(value) else low if value < 0 else high


@method("to")
def _to(b: Builder, owner: Any, dtype: Any) -> Any:
    return convert(b, owner, dtype)


@attribute(Tile, "to")
@attribute(Scalar, "to")
@attribute(Shared, "to")
@attribute(bool, "to")  # numbers that are known at compile time, as sizes may be
@attribute(int, "to")
@attribute(float, "to")
def _to_method(b: Builder, owner: Any) -> BoundMethod:
    return BoundMethod("to", owner)


@compiles(tile.where)
def _where(b: Builder, condition: Any, a: Any, b_: Any) -> Any:
    return apply(b, "select", condition, a, b_, what="where")


@compiles(tile.pow)
def power(b: Builder, a: Any, b_: Any) -> Any:
    """Return `a ** b_`; a small constant integer power becomes multiplications."""
    if not is_runtime(a) and not is_runtime(b_):
        return static_call(b, f"{show(a)} ** {show(b_)}", pow, a, b_)
    base = operand(b, a, "**")
    exponent = operand(b, b_, "**")
    if isinstance(exponent, int) and not isinstance(exponent, bool) and 0 <= exponent <= 16:
        if exponent > 2 and isinstance(base, Value) and base.dtype.is_float:
            return rounded(b, _repeated(b, widened(b, base), exponent), base)
        return _repeated(b, base, exponent)
    whole = isinstance(base, int) or (isinstance(base, Value) and not base.dtype.is_float)
    if whole and not isinstance(exponent, float):
        if not isinstance(exponent, Value) or not exponent.dtype.is_float:
            raise TypeMismatchError(
                f"** of {show(base)} and {show(exponent)}",
                code="dtype-mismatch",
                help="integers take constant powers from 0 to 16; write a float, as in 2.0 ** i, or cast to ts.f32",
            )
    return apply(b, "pow", base, exponent, what="**")


def _repeated(b: Builder, base: Any, exponent: int) -> Any:
    if exponent == 0:
        one = apply(b, "mul", base, 0)
        return apply(b, "add", one, 1) if not one.dtype.is_float else apply(b, "select", True, _ones(b, one), one)
    result: Any = None
    while exponent:
        if exponent & 1:
            result = base if result is None else apply(b, "mul", result, base, what="**")
        exponent >>= 1
        if exponent:
            base = apply(b, "mul", base, base, what="**")
    return result


def _ones(b: Builder, like: Value) -> Any:
    from tessera.frontend.convert import broadcast_to

    one = constant(b, 1, element_type(like.dtype))
    return wrap(broadcast_to(b, one, like.shape) if like.shape else one)


@compiles(tile.clamp)
def _clamp(b: Builder, x: Any, lo: Any, hi: Any) -> Any:
    return apply(b, "minimum", apply(b, "maximum", x, lo, what="clamp"), hi, what="clamp")


@compiles(tile.relu)
def _relu(b: Builder, x: Any) -> Any:
    return apply(b, "maximum", x, 0, what="relu")


@compiles(tile.sign)
def _sign(b: Builder, x: Any) -> Any:
    ready = operand(b, x, "sign")
    value = ready if isinstance(ready, Value) else wrap(constant(b, ready, default_element(ready)))
    if value.dtype.kind == "bool":
        value = wrap(cast_to(b, value.ssa, element_type(dtypes.i32)))
    # A comparison with 0 leaves NaN, which is its own sign.
    rest: Any = apply(b, "select", apply(b, "eq", value, 0), 0, value) if value.dtype.is_float else _zero(b, value)
    if value.dtype.kind != "uint":
        rest = apply(b, "select", apply(b, "lt", value, 0), -1, rest)
    return apply(b, "select", apply(b, "gt", value, 0), 1, rest)


def _zero(b: Builder, like: Value) -> Value:
    return wrap(constant(b, 0, element_of(like.type)))


def float_value(b: Builder, x: Any, what: str) -> Any:
    """Return `x` as a float value, which composites use several times."""
    ready = operand(b, x, what)
    if is_number(ready) or not ready.dtype.is_float:
        return convert(b, ready, "f32")
    return ready


@compiles(tile.silu)
def silu(b: Builder, x: Any) -> Any:
    """Compile `x * sigmoid(x)`."""
    value = float_value(b, x, "silu")
    x = widened(b, value)
    return rounded(b, apply(b, "mul", x, apply(b, "sigmoid", x)), value)


_ROOT = math.sqrt(2.0 / math.pi)
_FAR = 40.0
"""Where the normal distribution's tail is 0 in f64."""


@compiles(tile.gelu)
def gelu(b: Builder, x: Any, approximate: Any) -> Any:
    """Compile `x` times the normal distribution function."""
    value = float_value(b, x, "gelu")
    wide = widened(b, value)
    if approximate:  # 0.5 (1 + tanh(u)) is sigmoid(2u)
        square = apply(b, "mul", apply(b, "mul", wide, wide), 2 * 0.044715 * _ROOT)
        double = apply(b, "mul", wide, apply(b, "add", square, 2 * _ROOT))
        result = apply(b, "mul", wide, apply(b, "sigmoid", double))
    elif wide.dtype.bits == 32:
        result = _gelu_by_tail(b, wide)
    else:
        bell = apply(b, "erf", apply(b, "mul", wide, math.sqrt(0.5)))
        half = apply(b, "mul", apply(b, "maximum", wide, -_FAR), 0.5)  # -inf times 0 would be NaN
        result = apply(b, "mul", half, apply(b, "add", bell, 1.0))
    return rounded(b, result, value)


def _gelu_by_tail(b: Builder, x: Any) -> Any:
    """Return max(x, 0) - a Q(a), a = |x|: no more than a polynomial and a power, and no 1 + erf that cancels."""
    size = apply(b, "minimum", apply(b, "abs", x), NORMAL_TAIL_END)
    *lower, power = NORMAL_TAIL
    for coefficient in reversed(lower):
        power = apply(b, "fma", size, power, coefficient)
    twice = apply(b, "exp2", apply(b, "mul", size, power))
    return apply(b, "fma", apply(b, "mul", size, -0.5), twice, apply(b, "maximum", x, 0.0))


@compiles(tile.softplus)
def _softplus(b: Builder, x: Any) -> Any:
    value = float_value(b, x, "softplus")
    wide = widened(b, value)
    small = apply(b, "exp", apply(b, "neg", apply(b, "abs", wide)))
    total = apply(b, "add", apply(b, "maximum", wide, 0.0), apply(b, "log1p", small))
    return rounded(b, total, value)


def widened(b: Builder, value: Any) -> Any:
    """Return narrow floats as f32, so that a composite rounds once at its end."""
    return value if value.dtype.bits >= 32 else convert(b, value, "f32")


def rounded(b: Builder, result: Any, like: Any) -> Any:
    """Return what a composite has computed of `widened(b, like)`, in the dtype of `like`."""
    return wrap(cast_to(b, result.ssa, element_type(like.dtype)))


@attribute(Tile, "dtype")
@attribute(Scalar, "dtype")
@attribute(Shared, "dtype")
def _dtype(b: Builder, owner: Any) -> DType:
    return owner.dtype
