"""Elementwise functions and casts against float64, mpmath-free closed forms, and exact integer arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import mpmath
import numpy as np
import pytest

from tessera.interp.casts import tf32
from tessera.interp.elementwise import apply, scalar
from tessera.interp.gamma import lgamma
from tessera.ir.tile import elementwise
from tessera.numerics import dtypes
from tessera.numerics.conversions import convert, largest, round_once
from tessera.numerics.functions import FUNCTIONS, accepts
from tests.unit.interp.kernels import evaluate

RNG = np.random.default_rng(7)
F64 = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "pow": np.power,
    "neg": np.negative,
    "abs": np.abs,
    "fma": lambda a, b, c: a * b + c,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "trunc": np.trunc,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: x**-0.5,
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log1p": np.log1p,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "erf": np.vectorize(math.erf),
    "log10": np.log10,
    "tan": np.tan,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "cbrt": np.cbrt,
    "hypot": np.hypot,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "floordiv": np.floor_divide,
    "mod": np.remainder,
}


def ulp(dtype: dtypes.DType, value: np.ndarray) -> np.ndarray:
    """The distance of neighbouring values of a dtype around `value`."""
    exponent = np.floor(np.log2(np.maximum(np.abs(value), 1e-30)))
    return np.exp2(exponent - dtype.mantissa)


@pytest.mark.parametrize("dtype", [dtypes.f64, dtypes.f32, dtypes.f16, dtypes.bf16], ids=str)
@pytest.mark.parametrize("fn", sorted(F64))
def test_float_functions_are_within_an_ulp(fn: str, dtype: dtypes.DType) -> None:
    arity = FUNCTIONS[fn].arity
    args = [RNG.uniform(0.5, 3.5, 200).astype(dtype.numpy()) for _ in range(arity)]
    exact = F64[fn](*(arg.astype(np.float64) for arg in args))
    got = apply(fn, tuple(args), dtype)
    assert got.dtype == dtype.numpy()
    assert np.all(np.abs(got.astype(np.float64) - exact) <= ulp(dtype, exact) + 1e-300)


@pytest.mark.parametrize("fn", ["exp", "log", "sin", "tanh", "erf", "expm1", "sigmoid"])
def test_f32_transcendentals_are_correctly_rounded(fn: str) -> None:
    x = RNG.uniform(0.01, 4, 500).astype(np.float32)
    assert np.array_equal(apply(fn, (x,), dtypes.f32), F64[fn](x.astype(np.float64)).astype(np.float32))


def test_every_function_runs_on_every_dtype_of_its_domain() -> None:
    for name, function in FUNCTIONS.items():
        for dtype in dtypes.ALL:
            if dtype.name == "tf32" or not accepts(function, dtype.kind) or function.bits not in (None, dtype.bits):
                continue
            args = [np.ones(3, dtype.numpy())] * function.arity
            if name == "select":
                args[0] = np.ones(3, np.bool_)
            result = apply(name, tuple(args), dtype)
            wanted = np.dtype(np.bool_) if function.result == "bool" else dtype.numpy()
            assert (result.dtype, result.shape) == (wanted, (3,)), (name, dtype)


def test_integers_floor_wrap_and_multiply_high() -> None:
    a, b = np.array([-7, 7, -7, 7], np.int32), np.array([2, 2, -2, -2], np.int32)
    assert apply("floordiv", (a, b), dtypes.i32).tolist() == [-4, 3, 3, -4]
    assert apply("mod", (a, b), dtypes.i32).tolist() == [1, 1, -1, -1]
    top = np.array([2**31 - 1], np.int32)
    assert apply("add", (top, np.array([1], np.int32)), dtypes.i32)[0] == -(2**31)
    for dtype in (dtypes.i8, dtypes.u8, dtypes.i32, dtypes.u32, dtypes.i64, dtypes.u64):
        info = np.iinfo(dtype.numpy())
        x = RNG.integers(info.min, info.max, 50, dtype=dtype.numpy(), endpoint=True)
        y = RNG.integers(info.min, info.max, 50, dtype=dtype.numpy(), endpoint=True)
        wanted = [(int(i) * int(j)) >> dtype.bits for i, j in zip(x, y, strict=True)]
        assert apply("mulhi", (x, y), dtype).tolist() == wanted


def test_division_of_integers_by_zero_gives_zero() -> None:
    a, b = np.array([7, -7, 0, 5], np.int32), np.array([0, 0, 0, 2], np.int32)
    assert apply("floordiv", (a, b), dtypes.i32).tolist() == [0, 0, 0, 2]
    assert apply("mod", (a, b), dtypes.i32).tolist() == [0, 0, 0, 1]


def test_nan_is_propagated_by_maximum_and_unordered_in_comparisons() -> None:
    a, b = np.array([np.nan, 1, np.nan], np.float32), np.array([1, np.nan, np.nan], np.float32)
    assert np.isnan(apply("maximum", (a, b), dtypes.f32)).all()
    assert np.isnan(apply("minimum", (a, b), dtypes.f32)).all()
    assert not apply("lt", (a, b), dtypes.f32).any()
    assert not apply("eq", (a, a), dtypes.f32)[0]
    assert apply("ne", (a, b), dtypes.f32).all()


def test_fma_rounds_once() -> None:
    def exact(a: float, b: float, c: float) -> np.float32:
        return np.float32(float(Fraction(a) * Fraction(b) + Fraction(c)))  # double rounding only at exact ties

    a, b, c = (RNG.standard_normal(2000).astype(np.float32) for _ in range(3))
    c[:1000] = -(a[:1000] * b[:1000])  # leaves only the rounding error of the product
    wanted = [exact(float(x), float(y), float(z)) for x, y, z in zip(a, b, c, strict=True)]
    assert np.array_equal(apply("fma", (a, b, c), dtypes.f32), np.array(wanted))
    one = np.array([1 + 2.0**-52])
    assert apply("fma", (one, one, -one * one), dtypes.f64)[0] == 2.0**-104


def test_bf16_arithmetic_rounds_after_each_op() -> None:
    x = np.array([1.0], ml_dtypes.bfloat16)
    small = np.array([2.0**-8], ml_dtypes.bfloat16)  # half an ulp of 1
    total = apply("add", (apply("add", (x, small), dtypes.bf16), small), dtypes.bf16)
    assert float(total[0]) == 1.0


NARROW = [d for d in dtypes.ALL if d.is_float and d.bits <= 16]


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_rounding_from_f64_is_to_the_nearest_even(dtype: dtypes.DType) -> None:
    """Midpoints of neighbouring values, and points a hair off them, which double rounding gets wrong."""
    bits = np.arange(2**dtype.bits, dtype=f"u{dtype.bytes}").astype(f"u{dtype.bytes}")
    with np.errstate(invalid="ignore"):  # signalling NaNs
        values = bits.view(dtype.numpy()).astype(np.float64)
    values = np.unique(values[np.isfinite(values)])[1:-1]
    middle = (values[1:] + values[:-1]) / 2
    hair = np.abs(values[1:] - values[:-1]) * 2.0**-30
    assert np.array_equal(round_once(middle + hair, dtype).astype(np.float64), values[1:])
    assert np.array_equal(round_once(middle - hair, dtype).astype(np.float64), values[:-1])
    even = round_once(middle, dtype)
    mantissa = even.view(f"u{dtype.bytes}") & 1
    assert not mantissa.any()


@pytest.mark.parametrize("target", [dtypes.f16, dtypes.bf16, dtypes.fp8_e4m3], ids=str)
def test_integers_round_once(target: dtypes.DType) -> None:
    x = np.concatenate([RNG.integers(-(2**62), 2**62, 500), [2**31 + 2**23 + 1, -(2**63), 2**63 - 1, 257, 258]])
    wanted = [round_fraction(int(v), target) for v in x]
    got = convert(x.astype(np.int64), dtypes.i64, target).astype(np.float64)
    assert np.array_equal(got, np.array(wanted), equal_nan=True)


def round_fraction(value: int, target: dtypes.DType) -> float:
    """Round an integer to nearest even by exact arithmetic."""
    if value == 0:
        return 0.0
    shift = max(abs(value).bit_length() - 1 - target.mantissa, 0)
    quotient, rest = divmod(abs(value), 1 << shift)
    half = (1 << shift) >> 1
    quotient += rest > half or (rest == half and shift > 0 and quotient % 2 == 1)
    rounded = float(quotient << shift)
    overflow = math.nan if target.name == "fp8_e4m3" else math.inf
    return math.copysign(rounded if rounded <= largest(target) else overflow, value)


def test_float_to_integer_truncates_and_saturates() -> None:
    x = np.array([2.9, -2.9, 300.0, -300.0, np.inf, -np.inf, np.nan, 127.5], np.float32)
    assert convert(x, dtypes.f32, dtypes.i8).tolist() == [2, -2, 127, -128, 127, -128, 0, 127]
    assert convert(x, dtypes.f32, dtypes.u8).tolist() == [2, 0, 255, 0, 255, 0, 0, 127]
    big = np.array([2.0**63, -(2.0**63), 2.0**62])
    assert convert(big, dtypes.f64, dtypes.i64).tolist() == [2**63 - 1, -(2**63), 2**62]
    assert convert(np.array([2.0**64, -1.0]), dtypes.f64, dtypes.u64).tolist() == [2**64 - 1, 0]


def test_saturating_casts_clamp_finite_values() -> None:
    x = np.array([1e6, -1e6, np.inf, np.nan, 1.0], np.float32)
    clamped = convert(x, dtypes.f32, dtypes.fp8_e4m3, saturate=True).astype(np.float32)
    assert np.array_equal(clamped, np.array([448, -448, 448, np.nan, 1], np.float32), equal_nan=True)
    plain = convert(x, dtypes.f32, dtypes.fp8_e4m3).astype(np.float32)
    assert np.isnan(plain[:4]).all()
    assert np.isinf(convert(x, dtypes.f32, dtypes.fp8_e5m2).astype(np.float32)[0])


def test_bool_casts() -> None:
    x = np.array([0.0, -0.0, 0.5, np.nan], np.float32)
    assert convert(x, dtypes.f32, dtypes.boolean).tolist() == [False, False, True, True]
    assert convert(np.array([True, False]), dtypes.boolean, dtypes.bf16).astype(float).tolist() == [1.0, 0.0]


def test_tf32_keeps_ten_bits() -> None:
    x = RNG.standard_normal(1000).astype(np.float32)
    rounded = tf32(x)
    assert np.all(rounded.view(np.uint32) & 0x1FFF == 0)
    assert np.all(np.abs(rounded - x) <= ulp(dtypes.tf32, x) / 2)
    tie = np.array([1 + 2.0**-11, 1 + 3 * 2.0**-11], np.float32)
    assert tf32(tie).tolist() == [1.0, 1 + 2 * 2.0**-10]
    assert np.isnan(tf32(np.array([np.nan], np.float32)))[0]
    assert np.isinf(tf32(np.array([np.inf], np.float32)))[0]


def test_scalars_of_ir_constants() -> None:
    assert scalar(-1, dtypes.boolean) == np.True_
    assert scalar(255, dtypes.i8) == -1
    assert scalar(0.1, dtypes.f32) == np.float32(0.1)
    assert scalar(1.5, dtypes.bf16).dtype == ml_dtypes.bfloat16


def test_arange_splat_select_in_a_kernel() -> None:
    def build(at, x):
        index = at(elementwise.ArangeOp(6, x.type.element))
        three = at(elementwise.SplatOp(at.const(3, x.type.element), [6]))
        small = at(elementwise.ElementwiseOp("lt", [index, three]))
        return at(elementwise.ElementwiseOp("select", [small, index, x]))

    assert evaluate(build, np.full(6, 9, np.int32)).tolist() == [0, 1, 2, 9, 9, 9]


LGAMMA_POINTS = (0.03, 0.5, 0.999999, 1.0000001, 1.46, 1.9999999, 2.2, 7.5, 19.9, 1e3, 1e20, 1e300, 1e-300)


@pytest.mark.parametrize("x", [*LGAMMA_POINTS, -0.25, -2.5, -9.9])
def test_lgamma_keeps_its_digits_around_its_zeros(x: float) -> None:
    with mpmath.workdps(40):
        exact = mpmath.loggamma(mpmath.mpf(x)).real
        # Of a negative number the digits are those of what it is the difference of.
        assert abs(mpmath.mpf(float(lgamma(np.float64(x)))) - exact) <= 4e-16 * abs(exact) + 1e-15 * (x < 0)
