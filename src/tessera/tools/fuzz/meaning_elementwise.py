"""What elementwise functions mean, and how far an implementation may be off.

`+ - sqrt fma` and what only moves numbers are rounded once, so they are determined when their operands are. A product
may not be rounded before it is added (except under `strict`), and divisions and functions have the errors
that docs/numerics.md states.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from tessera.tools.fuzz.meaning_activations import ACTIVATIONS
from tessera.tools.fuzz.meaning_casts import cast
from tessera.tools.fuzz.meaning_values import FORMATS, Array, Val, either, nearest, rounded
from tessera.tools.fuzz.types import bits, is_float

_ERF: Any = np.frompyfunc(math.erf, 1, 1)


def apply(fn: str, args: Sequence[Val], dtype: str, profile: str) -> Val:
    """Evaluate a function of `functions.FUNCTIONS` on operands of one dtype.

    Args:
        fn: its name.
        args: the operands, already converted.
        dtype: their dtype.
        profile: the numerics profile.
    """
    with np.errstate(all="ignore"):
        if fn in COMPARISONS:
            return compare(fn, args[0], args[1])
        if fn in _CLASSES:
            return _class(_CLASSES[fn], args[0])
        if fn == "sign":
            return _sign(args[0])
        if fn == "relu":
            zero = Val(dtype, np.zeros_like(args[0].data))
            return larger(args[0], zero)
        if fn == "clamp":
            return smaller(larger(args[0], args[1]), args[2])
        if fn in ("maximum", "minimum"):
            return (larger if fn == "maximum" else smaller)(args[0], args[1])
        return _float(fn, args, dtype, profile) if is_float(dtype) else _int(fn, args, dtype)


def known_of(*args: Val) -> Array | None:
    """Return where all operands are known."""
    result: Array | None = None
    for arg in args:
        result = either(result, arg.known)
    return result


# Integers and bools


def _shift_left(a: Array, b: Array) -> Array:
    width = a.dtype.itemsize * 8
    inside = (b >= 0) & (b < width)
    return np.where(inside, np.left_shift(a, np.where(inside, b, 0).astype(a.dtype)), 0).astype(a.dtype)


def _shift_right(a: Array, b: Array) -> Array:
    width = a.dtype.itemsize * 8
    inside = (b >= 0) & (b < width)
    safe = np.where(inside, b, width - 1).astype(a.dtype)
    shifted = np.right_shift(a, safe)
    return shifted if a.dtype.kind == "i" else np.where(inside, shifted, 0).astype(a.dtype)


def _high(a: Array, b: Array) -> Array:
    width = a.dtype.itemsize * 8
    if width < 64:
        wide = np.int64 if a.dtype.kind == "i" else np.uint64
        return ((a.astype(wide) * b.astype(wide)) >> wide(width)).astype(a.dtype)
    product: Any = a.astype(object) * b.astype(object)
    return np.asarray(product >> 64).astype(a.dtype)


def _by_zero_is_zero(function: Any) -> Callable[[Array, Array], Array]:
    def divide(a: Array, b: Array) -> Array:
        zero = b == 0
        result = function(a, np.where(zero, 1, b).astype(b.dtype))
        return np.where(zero, 0, result).astype(a.dtype)

    return divide


def _unsigned(a: Array) -> list[int]:
    mask = (1 << (8 * a.dtype.itemsize)) - 1
    return [int(value) & mask for value in a.ravel()]


def _each(function: Callable[..., int]) -> Callable[..., Array]:
    """Return a function of the bits of integers and their width, number by number."""

    def apply_to_all(*args: Array) -> Array:
        spread = np.broadcast_arrays(*args)
        kind, width = spread[0].dtype, 8 * spread[0].dtype.itemsize
        found = [function(*row, width) for row in zip(*map(_unsigned, spread), strict=True)]
        return np.array(found, f"u{kind.itemsize}").view(kind).reshape(spread[0].shape)

    return apply_to_all


def _rotated(x: int, n: int, width: int) -> int:
    n %= width
    return ((x << n) | (x >> (width - n))) & ((1 << width) - 1)


def _rotated_back(x: int, n: int, width: int) -> int:
    return _rotated(x, -n, width)


def _set_bits(x: int, width: int) -> int:
    return x.bit_count()


def _zeros_above(x: int, width: int) -> int:
    return width - x.bit_length()


def _zeros_below(x: int, width: int) -> int:
    return (x & -x).bit_length() - 1 if x else width


def _picked(x: int, y: int, selector: int, width: int) -> int:
    pool = x | y << 32
    return sum((pool >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i for i in range(4))


def _rounded_up(a: Array, b: Array) -> Array:
    return _by_zero_is_zero(np.floor_divide)(a + (b - b.dtype.type(1)), b)


_INTS: Final[dict[str, Callable[..., Any]]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
    "neg": np.negative,
    "abs": np.abs,
    "shl": _shift_left,
    "shr": _shift_right,
    "mulhi": _high,
    "rotl": _each(_rotated),
    "rotr": _each(_rotated_back),
    "popcount": _each(_set_bits),
    "clz": _each(_zeros_above),
    "ctz": _each(_zeros_below),
    "byte_perm": _each(_picked),
    "floordiv": _by_zero_is_zero(np.floor_divide),
    "mod": _by_zero_is_zero(np.remainder),
    "cdiv": _rounded_up,
}


def _int(fn: str, args: Sequence[Val], dtype: str) -> Val:
    known = known_of(*args)
    data = [arg.data for arg in args]
    return Val(dtype, np.asarray(_INTS[fn](*data)), None, known)


# Comparisons and selections

COMPARISONS: Final[dict[str, Any]] = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}


def compare(fn: str, a: Val, b: Val) -> Val:
    """Compare; unknown where the operands' errors decide."""
    known = known_of(a, b)
    result = np.asarray(COMPARISONS[fn](a.data, b.data))
    if a.err is None and b.err is None:
        return Val("bool", result, None, known)
    reach = a.errors() + b.errors()
    sure = (reach == 0) | ~(np.abs(a.data - b.data) <= reach)
    return Val("bool", result, None, either(known, sure))


_CLASSES: Final[dict[str, Any]] = {"isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite}


def _class(function: Any, x: Val) -> Val:
    """Return whether a float is NaN, infinite or finite: an error leaves finite numbers finite."""
    return Val("bool", np.asarray(function(x.data)), None, x.known)


def _sign(x: Val) -> Val:
    """Return the sign; unknown where the error decides."""
    sign = np.sign(x.data).astype(x.data.dtype)
    sure = None if x.err is None else (x.err == 0) | (np.abs(x.data) > x.err)
    return Val(x.dtype, sign, None, either(x.known, sure))


def _copysign(args: Sequence[Val], dtype: str, profile: str) -> Val:
    """Return a magnitude with another's sign; unknown where that is a zero's or NaN's, or the error decides."""
    a, b = args
    sure = (np.abs(b.data) > b.errors()) & ~np.isnan(b.data)
    err = None if a.err is None else np.broadcast_to(a.err, np.broadcast_shapes(a.shape, b.shape))
    return Val(dtype, np.copysign(a.data, b.data), err, either(known_of(a, b), sure))


def larger(a: Val, b: Val) -> Val:
    """Return the maximum; NaN when either is NaN."""
    return _extreme(np.maximum, a, b)


def smaller(a: Val, b: Val) -> Val:
    """Return the minimum; NaN when either is NaN."""
    return _extreme(np.minimum, a, b)


def _extreme(function: Any, a: Val, b: Val) -> Val:
    result = np.asarray(function(a.data, b.data))
    if a.err is None and b.err is None:
        return Val(a.dtype, result, None, known_of(a, b))
    err = np.where(np.isfinite(result), np.maximum(a.errors(), b.errors()), 0.0)
    return Val(a.dtype, result, err, known_of(a, b))


def where(condition: Val, a: Val, b: Val) -> Val:
    """Select; where the condition is unknown, known only if both are equal to the bit."""
    data = np.where(condition.data, a.data, b.data)
    err = None
    if a.err is not None or b.err is not None:
        err = np.where(condition.data, a.errors(), b.errors())
    known = None
    if a.known is not None or b.known is not None:
        known = np.where(condition.data, a.mask(), b.mask())
    if condition.known is not None:
        same = (a.data == b.data) & (a.errors() + b.errors() == 0) & a.mask() & b.mask()
        known = np.where(condition.known, True if known is None else known, same)
    terms = None
    if a.terms is not None or b.terms is not None:
        sides = (0.0 if side.terms is None else side.terms for side in (a, b))
        terms = np.broadcast_to(np.where(condition.data, *sides), data.shape)
    return Val(a.dtype, data, err, known, terms=terms)


# Floats


def _float(fn: str, args: Sequence[Val], dtype: str, profile: str) -> Val:
    if fn in _ARITHMETIC:
        return _ARITHMETIC[fn](args, dtype, profile)
    if fn in _STEPS:
        return _step(_STEPS[fn], args[0])
    if fn == "neg":
        return Val(dtype, -args[0].data, args[0].err, args[0].known)
    if fn == "abs":
        return Val(dtype, np.abs(args[0].data), args[0].err, args[0].known)
    return _function(fn, args[0], dtype)


def _add(args: Sequence[Val], dtype: str, profile: str, sign: float = 1.0) -> Val:
    a, b = args
    err = None if a.err is None and b.err is None else a.errors() + b.errors()
    if profile == "fast" and sign > 0:  # a product may start from what it would be added to
        for product, other in ((a, b), (b, a)):
            if product.sums is not None and np.broadcast_shapes(product.shape, other.shape) == product.shape:
                err = (0.0 if err is None else err) + product.sums.reordered(other, FORMATS[dtype])
    result = rounded(dtype, a.data + sign * b.data, err, known_of(a, b))
    if profile != "fast" or dtype != "f32":
        return result
    return replace(result, terms=np.abs(a.data) + np.abs(b.data))


def _sub(args: Sequence[Val], dtype: str, profile: str) -> Val:
    return _add(args, dtype, profile, -1.0)


def _product_error(a: Val, b: Val) -> Array | None:
    if a.err is None and b.err is None:
        return None
    ea, eb = a.errors(), b.errors()
    err = np.abs(a.data) * eb + np.abs(b.data) * ea + ea * eb
    return np.where((ea == 0) & (eb == 0), 0.0, err)


def _mul(args: Sequence[Val], dtype: str, profile: str) -> Val:
    a, b = args
    exact, err = a.data * b.data, _product_error(a, b)
    result = rounded(dtype, exact, err, known_of(a, b))
    if profile == "strict":
        return result
    # It may meet an addition unrounded. f64 holds products of f32 exactly; of f64 the rounding shows in the residue.
    inexact = _inexact_f64(a.data, b.data) | np.isinf(exact) if dtype == "f64" else exact != result.data
    if err is not None:
        inexact = inexact | (err > 0)
    inexact &= np.isfinite(a.data) & np.isfinite(b.data)
    if not inexact.any():
        return result
    return _with_error(result, np.where(inexact, _ulp(result.data, dtype), 0.0))


def _inexact_f64(a: Array, b: Array) -> Array:
    from tessera.tools.fuzz.meaning_values import significant

    return significant(a) + significant(b) > 53


def _ulp(x: Array, dtype: str) -> Array:
    form = FORMATS[dtype]
    return 2 * form.unit * np.abs(x) + form.tiny


def _with_error(value: Val, more: Array) -> Val:
    err = more if value.err is None else value.err + more
    return Val(value.dtype, value.data, err, value.known)


def _fma(args: Sequence[Val], dtype: str, profile: str) -> Val:
    a, b, c = args
    err = _product_error(a, b)
    if c.err is not None:
        err = c.err if err is None else err + c.err
    exact = a.data * b.data + c.data
    slack = _fma_slack(a, b, c, dtype)
    if slack is not None:
        err = slack if err is None else err + slack
    if bits(dtype) < 32:  # computed in f32, as all arithmetic of narrow formats
        exact = nearest(exact, "f32")
    known = known_of(a, b, c)
    if dtype == "f64":  # the sum may be finite where float64 has no room for the product
        known = either(known, np.isfinite(a.data * b.data) | ~(np.isfinite(a.data) & np.isfinite(b.data)))
    return rounded(dtype, exact, err, known)


def _fma_slack(a: Val, b: Val, c: Val, dtype: str) -> Array | None:
    """Return what float64 arithmetic may have lost of `a * b + c`; None when nothing."""
    product = a.data * b.data
    lost = np.abs(product + c.data) * 2.0**-52
    if dtype == "f64":
        lost = lost + np.where(_inexact_f64(a.data, b.data), np.abs(product) * 2.0**-52, 0.0)
    total = product + c.data
    part = total - product
    residue = (product - (total - part)) + (c.data - part)
    inexact = (residue != 0) & np.isfinite(total)
    if dtype == "f64":
        inexact |= _inexact_f64(a.data, b.data) & np.isfinite(total)
    return np.where(inexact, lost, 0.0) if inexact.any() else None


def _div(args: Sequence[Val], dtype: str, profile: str) -> Val:
    a, b = args
    known = known_of(a, b)
    quotient = a.data / b.data
    size = np.abs(b.data)
    # By zero the sign of the zero decides.
    bad = (size <= b.errors()) & ~np.isnan(a.data)
    err: Array | None = None
    if a.err is not None or b.err is not None:
        ea, eb = a.errors(), b.errors()
        err = (ea + np.abs(quotient) * eb) / np.maximum(size - eb, 1e-300)
        err = np.where((ea == 0) & (eb == 0), 0.0, err)
    if profile != "strict":
        wide = "f64" if dtype == "f64" else "f32"
        form = FORMATS[wide]
        more = np.where(np.isfinite(quotient) & (a.data != 0), 8 * form.unit * np.abs(quotient) + form.tiny, 0.0)
        err = more if err is None else err + more
        bad |= (size < form.normal * 8) | (size > form.largest / 16) & np.isfinite(size)
    if bad.any():
        known = either(known, ~bad)
        quotient = np.where(bad, 0.0, quotient)
        err = None if err is None else np.where(bad, 0.0, err)
    return rounded(dtype, quotient, err, known)


def _floordiv(args: Sequence[Val], dtype: str, profile: str) -> Val:
    return _whole(np.floor_divide, args, dtype)


def _mod(args: Sequence[Val], dtype: str, profile: str) -> Val:
    return _whole(np.remainder, args, dtype)


def _whole(function: Any, args: Sequence[Val], dtype: str) -> Val:
    a, b = args
    # Narrow floats are computed in f32; float64 would give other quotients where the true one is near an integer.
    inner = np.float64 if dtype == "f64" else np.float32
    data = np.asarray(function(a.data.astype(inner), b.data.astype(inner))).astype(np.float64)
    bad = (a.errors() > 0) | (b.errors() > 0) | (b.data == 0) | ~np.isfinite(a.data) | ~np.isfinite(b.data)
    # A remainder that is rounded, or a quotient beyond the format's integers, is nobody's promise.
    bad |= np.abs(a.data) > np.abs(b.data) * 2.0 ** FORMATS[dtype].mantissa
    known = known_of(a, b)
    if bad.any():
        known, data = either(known, ~bad), np.where(bad, 0.0, data)
    return rounded(dtype, data, None, known)


def _pow(args: Sequence[Val], dtype: str, profile: str) -> Val:
    a, b = args
    corners = [np.power(a.data + i * a.errors(), b.data + j * b.errors()) for i in (-1, 0, 1) for j in (-1, 0, 1)]
    result = corners[4]
    spread = np.max([np.abs(corner - result) for corner in corners], axis=0)
    err = np.where((a.errors() == 0) & (b.errors() == 0), 0.0, spread)
    form = FORMATS["f64" if dtype == "f64" else "f32"]
    reach = np.abs(b.data * np.log2(np.where(a.data > 0, a.data, 1.0)))
    err = err + np.abs(result) * 2 * form.unit * (5 + 3 * reach) + form.normal
    # Zeros, infinities and signs of powers are held to less.
    bad = ~(a.data > a.errors()) | ~np.isfinite(result) | ~np.isfinite(err) | (reach > 120)
    result, err = np.where(bad, 1.0, result), np.where(bad, 0.0, err)
    return rounded(dtype, result, err, either(known_of(a, b), ~bad))


def power(base: Val, exponent: int, dtype: str) -> Val:
    """Return a power by repeated multiplication, in whatever order; narrow floats are rounded once, at the end."""
    from tessera.tools.fuzz.meaning_values import constant, significant

    if not is_float(dtype):
        result = np.ones_like(base.data)
        for _ in range(exponent):
            result = result * base.data
        return Val(dtype, result, None, base.known)
    with np.errstate(all="ignore"):
        if exponent < 2:
            one = np.broadcast_to(constant(1, dtype).data, base.shape)
            return Val(dtype, one) if exponent == 0 else base
        result = base.data**exponent
        form = FORMATS["f32" if bits(dtype) < 32 else dtype]
        relative = exponent * 2 * form.unit
        if base.err is not None:
            relative = relative + exponent * base.err / np.maximum(np.abs(base.data), 1e-300)
        exact = (significant(base.data) * exponent <= form.mantissa + 1) & (base.errors() == 0)
        err = np.where(exact, 0.0, np.expm1(np.minimum(relative * 1.1, 50.0)) * np.abs(result) + form.tiny)
        small = (np.abs(result) < form.normal) & (base.data != 0)
        return rounded(dtype, np.where(small, 0.0, result), err, either(base.known, ~small))


def _hypot(args: Sequence[Val], dtype: str, profile: str) -> Val:
    """Return the length of a vector, which is off by no more than its parts are together."""
    a, b = args
    result = np.hypot(a.data, b.data)
    form = FORMATS["f64" if dtype == "f64" else "f32"]
    own = np.where(np.isfinite(result), 6 * form.unit * result + 2 * form.tiny, 0.0)
    settled = ~np.isfinite(result) | ((a.data == 0) & (b.data == 0))
    err = np.where(settled, 0.0, own) + a.errors() + b.errors()
    bad = np.isfinite(result) & (result > FORMATS[dtype].largest / 2)
    bad |= ~np.isfinite(result) & np.isfinite(a.data) & np.isfinite(b.data)
    result = np.where(bad, 0.0, result)
    return rounded(dtype, result, np.where(bad | ~np.isfinite(result), 0.0, err), either(known_of(a, b), ~bad))


def _atan2(args: Sequence[Val], dtype: str, profile: str) -> Val:
    """Return an angle; unknown at the origin, and left of it where the sign of a zero or an error decides."""
    y, x = args
    result = np.arctan2(y.data, x.data)
    form = FORMATS["f64" if dtype == "f64" else "f32"]
    distance, errors = np.hypot(y.data, x.data), y.errors() + x.errors()
    finite = np.isfinite(y.data) & np.isfinite(x.data)
    bad = finite & ~(distance > 8 * errors) | finite & (distance < form.normal * 2.0**24)
    bad |= ~(x.data > x.errors()) & ~(np.abs(y.data) > y.errors()) & ~np.isnan(y.data + x.data)
    bad |= ~finite & ~np.isnan(y.data + x.data) & ((y.data == 0) | (errors > 0))
    err = 8 * form.unit * np.abs(result) + 2 * form.normal + np.where(errors > 0, 2 * errors / distance, 0.0)
    lost = bad | ~np.isfinite(err)
    nan = np.isnan(result)
    result, err = np.where(lost & ~nan, 0.0, result), np.where(lost | nan, 0.0, err)
    return rounded(dtype, result, err, either(known_of(y, x), ~lost | nan))


def _sqrt(args: Sequence[Val], dtype: str, profile: str) -> Val:
    x = args[0]
    result = np.sqrt(x.data)
    if x.err is None:
        return rounded(dtype, result, None, x.known)
    return _between(np.sqrt, x, dtype, result, np.zeros_like(result))


def _gated(gate: str) -> Callable[[Sequence[Val], str, str], Val]:
    """Return a product with an activation."""
    return lambda args, dtype, profile: _mul([_function(gate, args[0], dtype), args[1]], dtype, profile)


_ARITHMETIC: Final[dict[str, Callable[[Sequence[Val], str, str], Val]]] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "floordiv": _floordiv,
    "mod": _mod,
    "fma": _fma,
    "pow": _pow,
    "sqrt": _sqrt,
    "copysign": _copysign,
    "hypot": _hypot,
    "atan2": _atan2,
    **{name: _gated(gate) for name, gate in (("swiglu", "silu"), ("geglu", "gelu"), ("geglu_tanh", "gelu_tanh"))},
}

_STEPS: Final[dict[str, Any]] = {"floor": np.floor, "ceil": np.ceil, "round": np.rint, "trunc": np.trunc}


def _step(function: Any, x: Val) -> Val:
    """Round to an integer; unknown where the error decides."""
    result = rounded(x.dtype, function(x.data), None, x.known)
    if x.err is None:
        return result
    sure = (x.err == 0) | (function(x.data - x.err) == function(x.data + x.err))
    return Val(x.dtype, result.data, None, either(result.known, sure))


def _sigmoid(x: Array) -> Array:
    return np.where(x >= 0, 1.0 / (1.0 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1.0 + np.exp(-np.abs(x))))


def _erf(x: Array) -> Array:
    return np.asarray(_ERF(x)).astype(np.float64)


def _gelu(x: Array) -> Array:
    far = np.maximum(x, -40.0)
    return far * 0.5 * np.asarray(np.frompyfunc(math.erfc, 1, 1)(-far * math.sqrt(0.5))).astype(np.float64)


def _gelu_tanh(x: Array) -> Array:
    inner = 2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
    return np.maximum(x, -1e9) * _sigmoid(np.clip(inner, -1e5, 1e5))


def _softplus(x: Array) -> Array:
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))


# The function, its errors in ULP of the result and of the argument (`|x f'(x)|`), and a bound of `|f'|` for those that
# are not monotonic.
def _rsqrt(x: Array) -> Array:
    return 1.0 / np.sqrt(x)


def _silu(x: Array) -> Array:
    return np.where(np.isneginf(x), 0.0, x * _sigmoid(x))


def _by_math(function: Callable[[float], float]) -> Any:
    each: Any = np.frompyfunc(function, 1, 1)

    def evaluate(x: Array) -> Array:
        return np.asarray(each(x)).astype(np.float64)

    return evaluate


def _log_gamma(x: float) -> float:
    return math.lgamma(x) if x > 0 else math.nan  # of what is drawn, with an error, nothing is below 0


_FUNCTIONS: Final[dict[str, tuple[Any, float, float, float | None]]] = {
    "log10": (np.log10, 4.0, 0.0, None),
    "tan": (np.tan, 5.0, 0.0, None),
    "atan": (np.arctan, 4.0, 0.0, None),
    "asin": (np.arcsin, 4.0, 0.0, None),
    "acos": (np.arccos, 4.0, 0.0, None),
    "cbrt": (np.cbrt, 3.0, 0.0, None),
    "erfc": (_by_math(math.erfc), 6.0, 0.0, None),
    "lgamma": (_by_math(_log_gamma), 8.0, 0.0, 4.0),
    "rsqrt": (_rsqrt, 4.0, 0.0, None),
    "exp": (np.exp, 4.0, 2.0, None),
    "exp2": (np.exp2, 4.0, 1.0, None),
    "expm1": (np.expm1, 4.0, 0.0, None),
    "log": (np.log, 4.0, 0.0, None),
    "log2": (np.log2, 4.0, 0.0, None),
    "log1p": (np.log1p, 4.0, 0.0, None),
    "sin": (np.sin, 4.0, 0.0, 1.0),
    "cos": (np.cos, 4.0, 0.0, 1.0),
    "tanh": (np.tanh, 4.0, 0.0, None),
    "erf": (_erf, 4.0, 0.0, None),
    "sigmoid": (_sigmoid, 8.0, 2.0, None),
    "silu": (_silu, 10.0, 2.0, 1.2),
    "softplus": (_softplus, 10.0, 2.0, None),
    "gelu": (_gelu, 16.0, 16.0, 1.2),
    "gelu_tanh": (_gelu_tanh, 16.0, 16.0, 1.2),
    **ACTIVATIONS,
}


def _function(fn: str, x: Val, dtype: str) -> Val:
    """Evaluate a function whose implementations may be off by a few ULP."""
    function, result_ulp, argument_ulp, _ = _FUNCTIONS[fn]
    result = np.asarray(function(x.data))
    form = FORMATS["f64" if dtype == "f64" else "f32"]
    own = 2 * form.unit * result_ulp * np.abs(result) + 2 * form.normal
    if argument_ulp:
        own = own + 2 * form.unit * argument_ulp * np.abs(_slope(function, x.data) * x.data)
    if fn in ("gelu", "gelu_tanh"):  # the tail's polynomial has an absolute error too
        own = (
            own
            + np.abs(x.data) * 2.0**-40
            + (1e-12 if dtype == "f64" else 3e-6) * (np.abs(x.data) < 12) * np.abs(x.data)
        )
    if fn == "lgamma":  # Python's is off by this around the zeros
        own = own + 2.0**-45
    if fn in ("silu", "mish"):  # x times a factor, which may be zero where it is subnormal
        own = own + form.normal * np.abs(x.data)
    if fn == "exp" and x.terms is not None:  # of `x * c - m` it may be `exp2(x * (c log2 e) - m log2 e)`
        own = own + (function(x.data + 1.5 * 2 * form.unit * x.terms) - result)
    settled = ~np.isfinite(result) | ((x.data == 0) & (result == 0))
    own = np.where(settled, 0.0, own)
    return _between(function, x, dtype, result, own, _FUNCTIONS[fn][3])


def _slope(function: Any, x: Array) -> Array:
    """Return about the derivative."""
    step = np.maximum(np.abs(x), 1.0) * 1e-6
    slope = (function(x + step) - function(x - step)) / (2 * step)
    return np.where(np.isfinite(slope), slope, 0.0)


def _between(function: Any, x: Val, dtype: str, result: Array, own: Array, slope: float | None = None) -> Val:
    """Return a function of an uncertain argument: monotonic, or with a derivative of at most `slope`."""
    known, err = x.known, own
    if x.err is not None:
        if slope is None:
            low, high = function(x.data - x.err), function(x.data + x.err)
            spread = np.maximum(np.abs(high - result), np.abs(result - low))
        else:
            spread = slope * x.err
        err = own + np.where(x.err == 0, 0.0, spread)
    # Next to a pole, or to the end of the format, nothing is promised.
    lost = ~np.isfinite(err) | (np.isfinite(x.data) & ~np.isfinite(result) & ~np.isnan(result))
    large = np.isfinite(result) & (np.abs(result) > FORMATS[dtype].largest / 2) & (err > 0)
    lost |= large
    if lost.any():
        known, err, result = either(known, ~lost), np.where(lost, 0.0, err), np.where(lost, 0.0, result)
    return rounded(dtype, result, err, known)


def converted(args: Sequence[Val], dtype: str) -> list[Val]:
    """Return operands in one dtype."""
    return [cast(arg, dtype) for arg in args]
