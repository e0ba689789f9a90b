"""Every elementwise function x dtype x shape, pairwise: each function sees each dtype and, over them, each shape."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import mpmath
import numpy as np
import pytest

import tessera as ts
from tessera.numerics.dtypes import DType, promote
from tessera.numerics.functions import FUNCTIONS, INTERNAL
from tessera.numerics.tolerances import EXACT, Tolerance, of_function, of_rounding
from tests.conformance.data import float_specials, integers, normal, positive, with_specials
from tests.conformance.harness import Case, Close, Output, Rows, check, conformance, dtype

FLOATS = ("f32", "f16", "bf16", "f64")
INTS = ("i8", "i16", "i32", "i64", "u8", "u16", "u32")
DTYPES = (*FLOATS, *INTS, "bool")

# Shape of the tensor and of the tile: larger, equal and smaller; odd, not powers of two, flat and tall.
SHAPES: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((1,), (16,)),
    ((7,), (8,)),
    ((33,), (33,)),
    ((128,), (128,)),
    ((1000,), (96,)),
    ((3, 5), (4, 16)),
    ((16, 16), (16, 16)),
    ((48, 80), (16, 48)),
    ((64, 1), (24, 1)),
    ((1, 64), (1, 24)),
    ((37, 129), (12, 40)),
)


@ts.function
def _add(x, y, z):
    return x + y


@ts.function
def _sub(x, y, z):
    return x - y


@ts.function
def _mul(x, y, z):
    return x * y


@ts.function
def _div(x, y, z):
    return x / y


@ts.function
def _floordiv(x, y, z):
    return x // y


@ts.function
def _mod(x, y, z):
    return x % y


@ts.function
def _mulhi(x, y, z):
    return ts.tile.mulhi(x, y)


@ts.function
def _maximum(x, y, z):
    return ts.tile.maximum(x, y)


@ts.function
def _minimum(x, y, z):
    return ts.tile.minimum(x, y)


@ts.function
def _pow(x, y, z):
    return z**y


@ts.function
def _cube(x, y, z):
    return x**3


@ts.function
def _neg(x, y, z):
    return -x


@ts.function
def _abs(x, y, z):
    return ts.tile.abs(x)


@ts.function
def _fma(x, y, z):
    return ts.tile.fma(x, y, z)


@ts.function
def _where(x, y, z):
    return ts.tile.where(x < y, x, z)


@ts.function
def _lt(x, y, z):
    return x < y


@ts.function
def _le(x, y, z):
    return x <= y


@ts.function
def _gt(x, y, z):
    return x > y


@ts.function
def _ge(x, y, z):
    return x >= y


@ts.function
def _eq(x, y, z):
    return x == y


@ts.function
def _ne(x, y, z):
    return x != y


@ts.function
def _isnan(x, y, z):
    return ts.tile.isnan(x)


@ts.function
def _isinf(x, y, z):
    return ts.tile.isinf(x)


@ts.function
def _isfinite(x, y, z):
    return ts.tile.isfinite(x)


@ts.function
def _sign(x, y, z):
    return ts.tile.sign(x)


@ts.function
def _copysign(x, y, z):
    return ts.tile.copysign(z, x)


@ts.function
def _rotl(x, y, z):
    return ts.tile.rotl(x, z)


@ts.function
def _rotr(x, y, z):
    return ts.tile.rotr(x, z)


@ts.function
def _popcount(x, y, z):
    return ts.tile.popcount(x)


@ts.function
def _clz(x, y, z):
    return ts.tile.clz(x)


@ts.function
def _ctz(x, y, z):
    return ts.tile.ctz(x)


@ts.function
def _byte_perm(x, y, z):
    return ts.tile.byte_perm(x, y, x * 7 + z)


@ts.function
def _and(x, y, z):
    return x & y


@ts.function
def _or(x, y, z):
    return x | y


@ts.function
def _xor(x, y, z):
    return x ^ y


@ts.function
def _not(x, y, z):
    return ~x


@ts.function
def _shl(x, y, z):
    return x << z


@ts.function
def _shr(x, y, z):
    return x >> z


@ts.function
def _floor(x, y, z):
    return ts.tile.floor(x)


@ts.function
def _ceil(x, y, z):
    return ts.tile.ceil(x)


@ts.function
def _round(x, y, z):
    return ts.tile.round(x)


@ts.function
def _trunc(x, y, z):
    return ts.tile.trunc(x)


@ts.function
def _sqrt(x, y, z):
    return ts.tile.sqrt(z)


@ts.function
def _rsqrt(x, y, z):
    return ts.tile.rsqrt(z)


@ts.function
def _exp(x, y, z):
    return ts.tile.exp(x)


@ts.function
def _exp2(x, y, z):
    return ts.tile.exp2(x)


@ts.function
def _expm1(x, y, z):
    return ts.tile.expm1(x)


@ts.function
def _log(x, y, z):
    return ts.tile.log(z)


@ts.function
def _log2(x, y, z):
    return ts.tile.log2(z)


@ts.function
def _log1p(x, y, z):
    return ts.tile.log1p(z)


@ts.function
def _sin(x, y, z):
    return ts.tile.sin(x)


@ts.function
def _cos(x, y, z):
    return ts.tile.cos(x)


@ts.function
def _log10(x, y, z):
    return ts.tile.log10(z)


@ts.function
def _tan(x, y, z):
    return ts.tile.tan(x)


@ts.function
def _atan(x, y, z):
    return ts.tile.atan(x)


@ts.function
def _cbrt(x, y, z):
    return ts.tile.cbrt(x)


@ts.function
def _erfc(x, y, z):
    return ts.tile.erfc(x)


@ts.function
def _lgamma(x, y, z):
    return ts.tile.lgamma(ts.tile.abs(z))


@ts.function
def _asin(x, y, z):
    return ts.tile.asin(ts.tile.clamp(x * 0.25, -1, 1))


@ts.function
def _acos(x, y, z):
    return ts.tile.acos(ts.tile.clamp(x * 0.25, -1, 1))


@ts.function
def _atan2(x, y, z):
    return ts.tile.atan2(x, y)


@ts.function
def _hypot(x, y, z):
    return ts.tile.hypot(x, y)


@ts.function
def _tanh(x, y, z):
    return ts.tile.tanh(x)


@ts.function
def _erf(x, y, z):
    return ts.tile.erf(x)


@ts.function
def _sigmoid(x, y, z):
    return ts.tile.sigmoid(x)


@ts.function
def _relu(x, y, z):
    return ts.tile.relu(x)


@ts.function
def _clamp(x, y, z):
    return ts.tile.clamp(x, y, z)


@ts.function
def _silu(x, y, z):
    return ts.tile.silu(x)


@ts.function
def _gelu(x, y, z):
    return ts.tile.gelu(x)


@ts.function
def _gelu_tanh(x, y, z):
    return ts.tile.gelu(x, approximate=True)


@ts.function
def _softplus(x, y, z):
    return ts.tile.softplus(x)


# References, in extended precision for floats and in the dtype itself for integers.


def _by_mpmath(function: Callable[[Any], Any]) -> Callable[[np.ndarray], np.ndarray]:
    def evaluate(x: np.ndarray) -> np.ndarray:
        with mpmath.workprec(200):  # around a zero, mpmath loses what cancels
            parts = [(float(v), float(v - np.longdouble(float(v))) if np.isfinite(v) else 0.0) for v in x.ravel()]
            texts = [mpmath.nstr(function(mpmath.mpf(high) + mpmath.mpf(low)), 25) for high, low in parts]
        return np.array([np.longdouble(text) for text in texts]).reshape(x.shape)

    return evaluate


def _erfc_of(x: Any) -> Any:
    """erfc; mpmath fails far beyond where it is 0 or 2."""
    return x if mpmath.isnan(x) else mpmath.erfc(max(min(x, 100), -100))


def _lgamma_of(x: Any) -> Any:
    """The logarithm of gamma's magnitude, infinite at poles and at infinities."""
    if mpmath.isinf(x) or (x <= 0 and x == mpmath.floor(x)):
        return mpmath.inf
    return x if mpmath.isnan(x) else mpmath.re(mpmath.loggamma(x))


_exact_erf, _exact_erfc, _exact_lgamma = map(_by_mpmath, (mpmath.erf, _erfc_of, _lgamma_of))


def _exact_fma(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """The sum of which long double would have lost the product's last bits where it cancels."""
    with mpmath.workprec(200):
        rows = zip(*(v.astype(np.float64).ravel() for v in (x, y, z)), strict=True)
        texts = [mpmath.nstr(mpmath.mpf(a) * mpmath.mpf(b) + mpmath.mpf(c), 25) for a, b, c in rows]
    return np.array([np.longdouble(text) for text in texts]).reshape(x.shape)


def _exact_gelu(x: np.ndarray) -> np.ndarray:
    """At -inf it is 0, the limit."""
    product = 0.5 * x * (1 + _exact_erf(x * np.sqrt(np.longdouble(0.5))))
    return np.where(np.isneginf(x), 0, product)


def _logistic(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _tanh_gelu(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + np.longdouble(0.044715) * x**3)))


def _shift(up: bool) -> Callable[..., Any]:
    """Shifts by the width and more leave nothing, or the sign."""

    def shift(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        bits = 8 * x.dtype.itemsize
        amount = z.astype(np.int64)
        inside = (amount >= 0) & (amount < bits)
        safe = np.where(inside, amount, 0).astype(x.dtype)
        gone = np.where(x < 0, -1, 0).astype(x.dtype) if not up else np.zeros_like(x)
        return np.where(inside, x << safe if up else x >> safe, gone)

    return shift


def _mul_high(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    bits = 8 * x.dtype.itemsize
    exact = (x.astype(object) * y.astype(object)) >> bits
    return exact.astype(x.dtype)


def _on_bits(function: Callable[[int, int, int, int], int]) -> Callable[..., Any]:
    """Return a function of the bits of three integers and their width, number by number."""

    def evaluate(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        width = 8 * x.dtype.itemsize
        mask = (1 << width) - 1
        rows = zip(x.ravel(), y.ravel(), z.ravel(), strict=True)
        found = [function(int(a) & mask, int(b) & mask, int(c) & mask, width) & mask for a, b, c in rows]
        return np.array(found, f"u{x.dtype.itemsize}").view(x.dtype).reshape(x.shape)

    return evaluate


def _rotated(x: int, n: int, width: int) -> int:
    text = f"{x:0{width}b}"
    return int(text[n % width :] + text[: n % width], 2)


def _picked(x: int, y: int, selector: int) -> int:
    pool = x.to_bytes(4, "little") + y.to_bytes(4, "little")
    return int.from_bytes([pool[int(digit, 16) & 7] for digit in reversed(f"{selector:08x}"[4:])], "little")


@dataclass(frozen=True)
class Entry:
    """One function under test.

    Args:
        fn: calls it on x (any sign), y (not zero) and z (positive; for integers small).
        reference: the same in NumPy.
        kinds: kinds of dtype it is tested on.
        bound: its tolerance, by dtype; None for one rounding.
        magnitude: what the tolerance scales with.
        to_float: whether integers give f32.
        bits: the only width it is defined for.
    """

    fn: Any
    reference: Callable[..., Any]
    kinds: str = "float"
    bound: Callable[[DType], Tolerance] | None = None
    magnitude: Callable[..., Any] = lambda x, y, z: 0.0
    to_float: bool = True
    bits: int | None = None


def _approximate(name: str) -> Callable[[DType], Tolerance]:
    return lambda dt: of_function(name, dt)


def _chain(*names: str, roundings: float = 1.0, scaled: float = 0.0) -> Callable[[DType], Tolerance]:
    """Return the bound of functions and roundings one after the other."""

    def bound(dt: DType) -> Tolerance:
        total = of_rounding(dt, roundings).plus(Tolerance(scaled=scaled * (1e-15 if dt.bits == 64 else 4e-7)))
        for name in names:
            total = total.plus(of_function(name, dt))
        return total

    return bound


def _exactly(_dt: DType) -> Tolerance:
    return EXACT


NUMBERS, ALL = "float int uint", "float int uint bool"
ENTRIES: dict[str, Entry] = {
    "add": Entry(_add, lambda x, y, z: x + y, ALL, to_float=False),
    "sub": Entry(_sub, lambda x, y, z: x - y, NUMBERS, to_float=False),
    "mul": Entry(_mul, lambda x, y, z: x * y, NUMBERS, to_float=False),
    "div": Entry(_div, lambda x, y, z: x / y, NUMBERS, _approximate("div")),
    "floordiv": Entry(_floordiv, lambda x, y, z: x // y, NUMBERS, to_float=False),
    "mod": Entry(_mod, lambda x, y, z: x % y, NUMBERS, to_float=False),
    "mulhi": Entry(_mulhi, _mul_high, "int uint", to_float=False),
    "maximum": Entry(_maximum, lambda x, y, z: np.maximum(x, y), NUMBERS, _exactly, to_float=False),
    "minimum": Entry(_minimum, lambda x, y, z: np.minimum(x, y), NUMBERS, _exactly, to_float=False),
    "pow": Entry(
        _pow, lambda x, y, z: z**y, "float", _approximate("pow"), lambda x, y, z: np.abs(y * np.log(z) * z**y)
    ),
    "cube": Entry(_cube, lambda x, y, z: x * x * x, NUMBERS, lambda dt: of_rounding(dt, 2.1), to_float=False),
    "neg": Entry(_neg, lambda x, y, z: -x, NUMBERS, _exactly, to_float=False),
    "abs": Entry(_abs, lambda x, y, z: np.abs(x), NUMBERS, _exactly, to_float=False),
    "fma": Entry(_fma, _exact_fma, NUMBERS),
    "select": Entry(_where, lambda x, y, z: np.where(x < y, x, z), NUMBERS, _exactly, to_float=False),
    "lt": Entry(_lt, lambda x, y, z: x < y, NUMBERS, _exactly, to_float=False),
    "le": Entry(_le, lambda x, y, z: x <= y, NUMBERS, _exactly, to_float=False),
    "gt": Entry(_gt, lambda x, y, z: x > y, NUMBERS, _exactly, to_float=False),
    "ge": Entry(_ge, lambda x, y, z: x >= y, NUMBERS, _exactly, to_float=False),
    "eq": Entry(_eq, lambda x, y, z: x == y, ALL, _exactly, to_float=False),
    "ne": Entry(_ne, lambda x, y, z: x != y, ALL, _exactly, to_float=False),
    "isnan": Entry(_isnan, lambda x, y, z: np.isnan(x), "float", _exactly),
    "isinf": Entry(_isinf, lambda x, y, z: np.isinf(x), "float", _exactly),
    "isfinite": Entry(_isfinite, lambda x, y, z: np.isfinite(x), "float", _exactly),
    "sign": Entry(_sign, lambda x, y, z: np.sign(x), NUMBERS, _exactly, to_float=False),
    "copysign": Entry(_copysign, lambda x, y, z: np.copysign(z, x), NUMBERS, _exactly),
    "rotl": Entry(_rotl, _on_bits(lambda x, y, z, width: _rotated(x, z, width)), "int uint", to_float=False),
    "rotr": Entry(_rotr, _on_bits(lambda x, y, z, width: _rotated(x, -z, width)), "int uint", to_float=False),
    "popcount": Entry(_popcount, _on_bits(lambda x, y, z, width: x.bit_count()), "int uint", to_float=False),
    "clz": Entry(_clz, _on_bits(lambda x, y, z, width: width - x.bit_length()), "int uint", to_float=False),
    "ctz": Entry(
        _ctz, _on_bits(lambda x, y, z, width: (x & -x).bit_length() - 1 if x else width), "int uint", to_float=False
    ),
    "byte_perm": Entry(
        _byte_perm,
        _on_bits(lambda x, y, z, width: _picked(x, y, (x * 7 + z) % 2**32)),
        "int uint",
        to_float=False,
        bits=32,
    ),
    "and": Entry(_and, lambda x, y, z: x & y, "int uint bool", to_float=False),
    "or": Entry(_or, lambda x, y, z: x | y, "int uint bool", to_float=False),
    "xor": Entry(_xor, lambda x, y, z: x ^ y, "int uint bool", to_float=False),
    "not": Entry(_not, lambda x, y, z: ~x, "int uint bool", to_float=False),
    "shl": Entry(_shl, _shift(up=True), "int uint", to_float=False),
    "shr": Entry(_shr, _shift(up=False), "int uint", to_float=False),
    "floor": Entry(_floor, lambda x, y, z: np.floor(x), NUMBERS, _exactly),
    "ceil": Entry(_ceil, lambda x, y, z: np.ceil(x), NUMBERS, _exactly),
    "round": Entry(_round, lambda x, y, z: np.rint(x), NUMBERS, _exactly),
    "trunc": Entry(_trunc, lambda x, y, z: np.trunc(x), NUMBERS, _exactly),
    "sqrt": Entry(_sqrt, lambda x, y, z: np.sqrt(z), NUMBERS),
    "rsqrt": Entry(_rsqrt, lambda x, y, z: 1 / np.sqrt(z), "float", _approximate("rsqrt")),
    "exp": Entry(_exp, lambda x, y, z: np.exp(x), NUMBERS, _approximate("exp"), lambda x, y, z: np.abs(x) * np.exp(x)),
    "exp2": Entry(_exp2, lambda x, y, z: np.exp2(x), "float", _approximate("exp2")),
    "expm1": Entry(_expm1, lambda x, y, z: np.expm1(x), "float", _approximate("expm1")),
    "log": Entry(_log, lambda x, y, z: np.log(z), "float", _approximate("log")),
    "log2": Entry(_log2, lambda x, y, z: np.log2(z), "float", _approximate("log2")),
    "log1p": Entry(_log1p, lambda x, y, z: np.log1p(z), "float", _approximate("log1p")),
    "sin": Entry(_sin, lambda x, y, z: np.sin(x), NUMBERS, _approximate("sin")),
    "cos": Entry(_cos, lambda x, y, z: np.cos(x), "float", _approximate("cos")),
    "tanh": Entry(_tanh, lambda x, y, z: np.tanh(x), NUMBERS, _approximate("tanh")),
    "erf": Entry(_erf, lambda x, y, z: _exact_erf(x), "float", _approximate("erf")),
    "log10": Entry(_log10, lambda x, y, z: np.log10(z), "float", _approximate("log10")),
    "tan": Entry(_tan, lambda x, y, z: np.tan(x), "float", _approximate("tan")),
    "atan": Entry(_atan, lambda x, y, z: np.arctan(x), NUMBERS, _approximate("atan")),
    "atan2": Entry(_atan2, lambda x, y, z: np.arctan2(x, y), NUMBERS, _approximate("atan2")),
    "asin": Entry(_asin, lambda x, y, z: np.arcsin(np.clip(x / 4, -1, 1)), "float", _approximate("asin")),
    "acos": Entry(_acos, lambda x, y, z: np.arccos(np.clip(x / 4, -1, 1)), "float", _approximate("acos")),
    "cbrt": Entry(_cbrt, lambda x, y, z: np.cbrt(x), NUMBERS, _approximate("cbrt")),
    "hypot": Entry(_hypot, lambda x, y, z: np.hypot(x, y), NUMBERS, _approximate("hypot")),
    "erfc": Entry(_erfc, lambda x, y, z: _exact_erfc(x), "float", _approximate("erfc")),
    "lgamma": Entry(_lgamma, lambda x, y, z: _exact_lgamma(np.abs(z)), "float", _approximate("lgamma")),
    "sigmoid": Entry(
        _sigmoid,
        lambda x, y, z: _logistic(x),
        "float",
        _approximate("sigmoid"),
        lambda x, y, z: np.abs(x) * _logistic(x),
    ),
    "relu": Entry(_relu, lambda x, y, z: np.maximum(x, 0), NUMBERS, _exactly, to_float=False),
    "clamp": Entry(_clamp, lambda x, y, z: np.minimum(np.maximum(x, y), z), NUMBERS, _exactly, to_float=False),
    "silu": Entry(
        _silu,
        lambda x, y, z: x * _logistic(x),
        "float",
        _chain("sigmoid"),
        lambda x, y, z: x * x * _logistic(x),
    ),
    "gelu": Entry(
        _gelu,
        lambda x, y, z: _exact_gelu(x),
        "float",
        _chain("erf", scaled=2.0),
        lambda x, y, z: np.abs(x),
    ),
    "gelu_tanh": Entry(
        _gelu_tanh,
        lambda x, y, z: _tanh_gelu(x),
        "float",
        _chain("tanh", scaled=4.0),
        lambda x, y, z: np.abs(x) + x * x,
    ),
    "softplus": Entry(
        _softplus,
        lambda x, y, z: np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0),
        "float",
        _chain("exp", "log1p"),
        lambda x, y, z: np.abs(x) * np.exp(-np.abs(x)),
    ),
}


def test_no_function_is_left_out():
    assert not FUNCTIONS.keys() - ENTRIES.keys() - INTERNAL


def _kernel(fns: Sequence[Any], rank: int, dt: DType, out: DType) -> Callable[..., Any]:
    fns, count = tuple(fns), len(fns)

    def flat(
        x: ts.Tensor["n", dt],
        y: ts.Tensor["n", dt],
        z: ts.Tensor["n", dt],
        r: ts.Tensor[count, "n", out],
        B: ts.constexpr,
        _: ts.constexpr = 0,
    ):
        for i in ts.tile.grid((n, B)):
            a, b, c = x[i : i + B], ts.tile.load(y[i : i + B], fill=1), z[i : i + B]
            for f in ts.tile.static_range(count):
                r[f, i : i + B] = fns[f](a, b, c)
        return r

    def square(
        x: ts.Tensor["m", "n", dt],
        y: ts.Tensor["m", "n", dt],
        z: ts.Tensor["m", "n", dt],
        r: ts.Tensor[count, "m", "n", out],
        B: ts.constexpr,
        C: ts.constexpr,
    ):
        for i, j in ts.tile.grid((m, B), (n, C)):
            a, b, c = (
                x[i : i + B, j : j + C],
                ts.tile.load(y[i : i + B, j : j + C], fill=1),
                z[i : i + B, j : j + C],
            )
            for f in ts.tile.static_range(count):
                r[f, i : i + B, j : j + C] = fns[f](a, b, c)
        return r

    return flat if rank == 1 else square


def _arguments(shape: tuple[int, ...], dt: DType, count: int, out: DType, specials: bool) -> Callable[..., Any]:
    def make(rng: np.random.Generator) -> Sequence[Any]:
        result = Output((count, *shape), out)
        if dt.kind == "bool":
            return (*(normal(rng, shape, dt) for _ in range(3)), result)
        if dt.is_int:
            wide = integers(rng, shape, dt), integers(rng, shape, dt)
            # Where integers become floats, small ones: sin(2**31) in f32 says nothing.
            x, y = (normal(rng, shape, dt), normal(rng, shape, dt)) if out.is_float else wide
            low = -2 if dt.kind == "int" and not out.is_float else 0
            z = rng.integers(low, dt.bits + 3, shape).astype(dt.numpy())
            return x, np.where(y == 0, 3, y).astype(dt.numpy()), z, result
        x = with_specials(rng, normal(rng, shape, dt, 2.0), [0.0, 0.5, -1.5, 2.5, 1.0, -1.0])
        y = with_specials(rng, normal(rng, shape, dt, 2.0), [1.0, -0.5, 2.0])
        y = np.where(np.abs(y) < 0.125, 1, y).astype(dt.numpy())
        z = positive(rng, shape, dt)
        if specials:
            numbers = float_specials(dt)
            x, y, z = (with_specials(rng, values, numbers) for values in (x, y, z))
        return x, y, z, result

    return make


def _reference(names: Sequence[str], dt: DType, out: DType) -> Callable[..., Any]:
    def expected(x: Any, y: Any, z: Any, _result: Any) -> Close:
        if dt.is_float or out.is_float:
            x, y, z = (np.asarray(v).astype(np.float64).astype(np.longdouble) for v in (x, y, z))
        elif dt.kind == "bool" and out.kind != "bool":
            x, y, z = (v.astype(np.int32) for v in (x, y, z))
        values = [ENTRIES[name].reference(x, y, z) for name in names]
        kind = np.longdouble if out.is_float else out.numpy()
        sizes = [np.broadcast_to(ENTRIES[name].magnitude(x, y, z) if out.is_float else 0.0, x.shape) for name in names]
        return Close(np.stack([v.astype(kind) for v in values]), np.stack(sizes))

    return expected


def _case(
    names: Sequence[str],
    dt: DType,
    out: DType,
    shape: tuple[int, ...],
    tile: tuple[int, ...],
    profile: str = "fast",
    specials: bool = False,
) -> Case:
    sizes = {"B": tile[0], **({"C": tile[1]} if len(tile) == 2 else {})}
    compute = dt if dt.is_float else out
    tolerances = Rows(tuple((name, (ENTRIES[name].bound or of_rounding)(compute)) for name in names))
    text = "x".join(map(str, shape))
    return Case(
        f"{'+'.join(names)}-{dt}-{out}-{text}{'-specials' if specials else ''}",
        _kernel([ENTRIES[name].fn for name in names], len(shape), dt, out),
        _arguments(shape, dt, len(names), out, specials),
        _reference(names, dt, out),
        tolerances,
        sizes,
        profile,
    )


def _cases() -> list[Case]:
    cases: list[Case] = []
    for at, name in enumerate(DTYPES):
        dt = dtype(name)
        same = [
            n
            for n, e in ENTRIES.items()
            if dt.kind in e.kinds and (dt.is_float or not e.to_float) and e.bits in (None, dt.bits)
        ]
        floats = [n for n, e in ENTRIES.items() if dt.is_int and dt.kind in e.kinds.split() and e.to_float]
        if dt.kind == "bool":
            same = ["and", "or", "xor", "not", "eq", "ne"]
        for place, (shape, tile) in enumerate(SHAPES):
            # A Latin square: function f of dtype d runs at one shape, another one for each dtype.
            names = [n for k, n in enumerate(same) if (k + at) % len(SHAPES) == place]
            if names:
                cases.append(_case(names, dt, dt, shape, tile))
        if floats:
            shape, tile = SHAPES[at % len(SHAPES)]
            cases.append(_case(floats, dt, ts.f32, shape, tile))
    cases.append(_case(["add", "eq"], ts.bool_, ts.i32, (33,), (16,)))
    return cases


CASES = _cases()


@conformance(CASES)
def test_functions(case, backend):
    check(case, backend)


COMPARISONS = ["lt", "le", "gt", "ge", "eq", "ne"]
CLASSES = ["isnan", "isinf", "isfinite"]


@conformance(
    [
        _case([*COMPARISONS, *CLASSES], dtype(name), ts.bool_, (37, 33), (16, 48), "strict", specials=True)
        for name in FLOATS
    ]
    + [_case(COMPARISONS, dtype(name), ts.bool_, (3, 50), (2, 24)) for name in (*INTS, "u64")]
)
def test_comparisons_give_bool(case, backend):
    check(case, backend)


PAIRS = (
    ("f64", "i64"),
    ("u64", "f64"),
    ("f32", "u32"),
    ("i32", "f32"),
    ("bf16", "u16"),
    ("i16", "f16"),
    ("f16", "bf16"),
)


def _bits_kernel(source: DType, target: DType) -> Callable[..., Any]:
    def kernel(x: ts.Tensor["m", "n", source], r: ts.Tensor["m", "n", target]):
        for i, j in ts.tile.grid((m, 8), (n, 24)):
            bits = ts.tile.bitcast(x[i : i + 8, j : j + 24], target)
            r[i : i + 8, j : j + 24] = bits.T.T

    return kernel


def _numbers(source: DType) -> Callable[[np.random.Generator, tuple[int, int]], np.ndarray]:
    """Return a maker of numbers of any bits that mean no NaN in any type: the exponents are not the largest."""

    def make(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
        bits = rng.integers(0, 2**source.bits, shape, np.uint64) & np.uint64(~(1 << (source.bits - 3)) % 2**64)
        return bits.astype(f"u{source.bytes}").view(source.numpy())

    return make


@conformance(
    [
        Case(
            f"bitcast-{source}-{target}",
            _bits_kernel(dtype(source), dtype(target)),
            lambda rng, source=source, target=target: [
                _numbers(dtype(source))(rng, (37, 50)),
                Output((37, 50), dtype(target)),
            ],
            lambda x, _r, target=target: x.view(dtype(target).numpy()),
            EXACT,
        )
        for source, target in PAIRS
    ]
)
def test_bitcasts_keep_every_bit(case, backend):
    check(case, backend)


def _zeros_kernel(source: DType, target: DType) -> Callable[..., Any]:
    def kernel(x: ts.Tensor["m", "n", source], r: ts.Tensor["m", "n", ts.bool_]):
        for i, j in ts.tile.grid((m, 8), (n, 24)):
            tile = x[i : i + 8, j : j + 24]
            r[i : i + 8, j : j + 24] = ts.tile.bitcast(tile + tile, target)

    return kernel


def _zeros_and_numbers(source: DType) -> Callable[[np.random.Generator, tuple[int, int]], np.ndarray]:
    def make(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
        zeros = rng.choice(np.array([0.0, -0.0]), shape).astype(source.numpy())
        return np.where(rng.integers(0, 2, shape, bool), zeros, _numbers(source)(rng, shape))

    return make


@conformance(
    [
        Case(
            f"zeros-of-{source}-as-{target}",
            _zeros_kernel(dtype(source), dtype(target)),
            lambda rng, source=source: [
                _zeros_and_numbers(dtype(source))(rng, (37, 50)),
                Output((37, 50), ts.bool_),
            ],
            lambda x, _r, target=target: (x + x).view(dtype(target).numpy()) != 0,
            EXACT,
        )
        for source, target in (("bf16", "f16"), ("f16", "bf16"), ("f32", "i32"), ("u32", "f32"))
    ]
)
def test_a_sum_seen_as_another_type_is_compared_with_zero(case, backend):
    """LLVM 22 ends the process where it compares a `half` with zero whose bits it knows as a `bfloat`."""
    check(case, backend)


def negative_tail(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    for i in ts.tile.grid((n, 256)):
        y[i : i + 256] = ts.tile.gelu(x[i : i + 256])


def _normal_tail(x: np.ndarray, *_: Any) -> np.ndarray:
    """x erfc(-x / sqrt(2)) / 2, which does not cancel."""
    with mpmath.workprec(120):
        exact = [mpmath.mpf(float(v)) * mpmath.erfc(-mpmath.mpf(float(v)) / mpmath.sqrt(2)) / 2 for v in x]
    return np.array([float(v) for v in exact])


@conformance(
    [
        Case(
            f"gelu-from-{low}-to-{high}-{profile}",
            negative_tail,
            lambda rng, low=low, high=high: [
                rng.uniform(low, high, 3001).astype(np.float32),
                Output((3001,), ts.f32),
            ],
            _normal_tail,
            Tolerance(relative=relative, absolute=absolute),
            profile=profile,
        )
        # `1 + erf` would leave 1e-5 of the numbers around -3, and nothing of those below -5.5.
        for low, high, relative, absolute in (
            (-1, 1, 4e-7, 1e-9),
            (-3.5, -1, 4e-6, 0.0),
            (-40, -3.5, 0.0, 1e-9),
        )
        for profile in ("strict", "fast")
        if not (profile == "fast" and low == -1)
    ]
)
def test_gelu_keeps_its_digits_where_it_is_small(case, backend):
    check(case, backend)


SPECIAL = [name for name in ENTRIES if ENTRIES[name].kinds.startswith("float") and name not in ("silu", "cube")]


@conformance(
    [
        _case(SPECIAL[first::3], dtype(name), dtype(name), (37, 33), (16, 48), "strict", specials=True)
        for name in FLOATS
        for first in range(3)
    ]
)
def test_special_values_under_strict(case, backend):
    check(case, backend)


@conformance(
    [
        _case(SPECIAL[first::3], dtype(name), dtype(name), (37, 33), (16, 48), specials=True)
        for name in ("f32", "f16")
        for first in range(3)
    ]
)
def test_special_values_under_fast(case, backend):
    check(case, backend)


PROMOTED = (
    "f64",
    "f32",
    "f16",
    "bf16",
    "fp8_e4m3",
    "fp8_e5m2",
    "i8",
    "i16",
    "i32",
    "i64",
    "u8",
    "u16",
    "u32",
    "u64",
    "bool",
)


def _promotion_case(left: str) -> Case:
    """One kernel adds a tile of `left` to tiles of every dtype."""
    dt = dtype(left)
    others = [dtype(name) for name in PROMOTED]
    results = [promote(dt, other) if {dt.kind, other.kind} != {"bool"} else ts.i32 for other in others]
    return Case(
        f"promotion-{left}",
        _promotion_kernel(dt, others, results),
        lambda rng: [
            normal(rng, (9,), dt),
            *(normal(rng, (9,), other) for other in others),
            *(Output((9,), result) for result in results),
        ],
        lambda x, *rest: tuple(
            _sum_in(result, x, y, other) for result, y, other in zip(results, rest, others, strict=False)
        ),
        [of_rounding(result).plus(of_rounding(ts.f16, 1.0 if result.bits <= 16 else 0.0)) for result in results],
    )


def _sum_in(result: DType, x: np.ndarray, y: np.ndarray, other: DType) -> np.ndarray:
    if result.is_float:
        first = np.float32 if result.bits < 32 else result.numpy()  # ml_dtypes converts some pairs through f32 only
        x, y = (v.astype(first).astype(result.numpy()).astype(np.float64) for v in (x, y))
        return x + y
    return (x.astype(result.numpy()) + y.astype(result.numpy())).astype(result.numpy())


def _promotion_kernel(dt: DType, o: Sequence[DType], r: Sequence[DType]) -> Callable[..., Any]:
    def kernel(
        x: ts.Tensor["n", dt],
        y0: ts.Tensor["n", o[0]],
        y1: ts.Tensor["n", o[1]],
        y2: ts.Tensor["n", o[2]],
        y3: ts.Tensor["n", o[3]],
        y4: ts.Tensor["n", o[4]],
        y5: ts.Tensor["n", o[5]],
        y6: ts.Tensor["n", o[6]],
        y7: ts.Tensor["n", o[7]],
        y8: ts.Tensor["n", o[8]],
        y9: ts.Tensor["n", o[9]],
        ya: ts.Tensor["n", o[10]],
        yb: ts.Tensor["n", o[11]],
        yc: ts.Tensor["n", o[12]],
        yd: ts.Tensor["n", o[13]],
        ye: ts.Tensor["n", o[14]],
        r0: ts.Tensor["n", r[0]],
        r1: ts.Tensor["n", r[1]],
        r2: ts.Tensor["n", r[2]],
        r3: ts.Tensor["n", r[3]],
        r4: ts.Tensor["n", r[4]],
        r5: ts.Tensor["n", r[5]],
        r6: ts.Tensor["n", r[6]],
        r7: ts.Tensor["n", r[7]],
        r8: ts.Tensor["n", r[8]],
        r9: ts.Tensor["n", r[9]],
        ra: ts.Tensor["n", r[10]],
        rb: ts.Tensor["n", r[11]],
        rc: ts.Tensor["n", r[12]],
        rd: ts.Tensor["n", r[13]],
        re: ts.Tensor["n", r[14]],
    ):
        for i in ts.tile.grid((n, 16)):
            v = x[i : i + 16]
            r0[i : i + 16] = v + y0[i : i + 16]
            r1[i : i + 16] = v + y1[i : i + 16]
            r2[i : i + 16] = v + y2[i : i + 16]
            r3[i : i + 16] = v + y3[i : i + 16]
            r4[i : i + 16] = v + y4[i : i + 16]
            r5[i : i + 16] = v + y5[i : i + 16]
            r6[i : i + 16] = v + y6[i : i + 16]
            r7[i : i + 16] = v + y7[i : i + 16]
            r8[i : i + 16] = v + y8[i : i + 16]
            r9[i : i + 16] = v + y9[i : i + 16]
            ra[i : i + 16] = v + ya[i : i + 16]
            rb[i : i + 16] = v + yb[i : i + 16]
            rc[i : i + 16] = v + yc[i : i + 16]
            rd[i : i + 16] = v + yd[i : i + 16]
            re[i : i + 16] = v + ye[i : i + 16]

    return kernel


@conformance([_promotion_case(name) for name in PROMOTED])
def test_promotion(case, backend):
    check(case, backend)


def test_the_reference_of_promotion_is_the_documented_table():
    table = {
        ("bf16", "f16"): "f32",
        ("bf16", "f32"): "f32",
        ("f16", "i32"): "f16",
        ("i8", "u8"): "i16",
        ("u64", "i64"): "i64",
        ("fp8_e4m3", "fp8_e5m2"): "f16",
        ("u8", "bool"): "u8",
        ("i16", "u32"): "i64",
        ("f64", "i64"): "f64",
    }
    for (left, right), result in table.items():
        assert promote(dtype(left), dtype(right)).name == promote(dtype(right), dtype(left)).name == result


def _weak(
    x: ts.Tensor["n", ts.bf16],
    i: ts.Tensor["n", ts.i8],
    r: ts.Tensor[4, "n", ts.bf16],
    s: ts.Tensor[2, "n", ts.i8],
    t: ts.Tensor["n", ts.f32],
):
    for k in ts.tile.grid((n, 8)):
        a, b = x[k : k + 8], i[k : k + 8]
        r[0, k : k + 8] = a + 1
        r[1, k : k + 8] = 2.5 - a
        r[2, k : k + 8] = ts.tile.maximum(a, -0.5)
        r[3, k : k + 8] = ts.tile.where(b > 0, a, 7)
        s[0, k : k + 8] = b * 3
        s[1, k : k + 8] = 100 - b
        t[k : k + 8] = b * 0.5


@conformance(
    [
        Case(
            "weak-numbers",
            _weak,
            lambda rng: (
                normal(rng, (13,), ts.bf16),
                normal(rng, (13,), ts.i8),
                Output((4, 13), ts.bf16),
                Output((2, 13), ts.i8),
                Output((13,), ts.f32),
            ),
            lambda x, i, *_: (
                np.stack(
                    [
                        x.astype(float) + 1,
                        2.5 - x.astype(float),
                        np.maximum(x.astype(float), -0.5),
                        np.where(i > 0, x.astype(float), 7),
                    ]
                ),
                np.stack([i * np.int8(3), np.int8(100) - i]),
                i * 0.5,
            ),
            [of_rounding(ts.bf16), EXACT, EXACT],
        )
    ]
)
def test_python_numbers_take_the_dtype_of_the_tile(case, backend):
    check(case, backend)


# Composites of narrow floats round once: numbers between -1 and 8, in all formats


def composites(dt: DType) -> Callable[..., Any]:
    def kernel(x: ts.Tensor["n", dt], y: ts.Tensor[6, "n", dt]):
        for i in ts.tile.grid((n, 256)):
            v = x[i : i + 256]
            y[0, i : i + 256] = ts.tile.silu(v)
            y[1, i : i + 256] = ts.tile.gelu(v)
            y[2, i : i + 256] = ts.tile.gelu(v, approximate=True)
            y[3, i : i + 256] = ts.tile.softplus(v)
            y[4, i : i + 256] = v**3
            y[5, i : i + 256] = v**7

    return kernel


def _composites(x: np.ndarray) -> np.ndarray:
    return np.stack(
        [
            x * _logistic(x),
            _exact_gelu(x),
            _tanh_gelu(x),
            np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0),
            x**3,
            x**7,
        ]
    )


@pytest.mark.parametrize("interpreted", [False, True])
@pytest.mark.parametrize("name", ["bf16", "f16", "fp8_e4m3", "fp8_e5m2", "fp6_e2m3", "fp6_e3m2", "fp4_e2m1"])
def test_composites_round_once(name, interpreted, monkeypatch):
    if interpreted:
        monkeypatch.setenv("TESSERA_INTERPRET", "1")
    dt = dtype(name)
    kind = dt.numpy()
    codes = np.arange(1 << dt.bits).astype(f"u{kind.itemsize}")
    with np.errstate(invalid="ignore"):
        numbers = codes.view(kind).astype(np.float64)
    x = codes.view(kind)[(numbers >= -1) & (numbers <= 8)][:: 23 if dt.bits == 16 else 1].copy()
    y = np.zeros((6, len(x)), kind)
    ts.kernel(composites(dt))(x, y)
    exact = _composites(x.astype(np.longdouble)).astype(np.float64)
    with np.errstate(over="ignore"):
        ends = [(exact * (1 + side)).astype(kind).astype(np.float64) for side in (-2e-6, 2e-6)]
    largest = float(ml_dtypes.finfo(kind).max)
    inside = np.abs(exact) < largest
    got = y.astype(np.float64)
    right = (got >= np.minimum(*ends)) & (got <= np.maximum(*ends))
    np.testing.assert_array_equal(got[inside & ~right], [])
