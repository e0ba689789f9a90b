"""What integer arithmetic and conversions to integers give for every pair of extreme values, of tiles and of scalars.

The expected values come from Python's integers, taken modulo two to the width.
"""

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tessera as ts
from tests.unit.frontend.support import run

INTEGERS = [ts.i8, ts.i16, ts.i32, ts.i64, ts.u8, ts.u16, ts.u32, ts.u64]
FLOATS = [ts.f16, ts.bf16, ts.f32, ts.f64]


@ts.function
def results(a, b):
    return (
        a + b,
        a - b,
        a * b,
        a // b,
        a % b,
        a << b,
        a >> b,
        ts.tile.mulhi(a, b),
        -a,
        ts.tile.abs(a),
        ts.tile.maximum(a, b),
        ts.tile.minimum(a, b),
        a & b,
        a | b,
        a ^ b,
        ~a,
    )


def _shift_left(a: int, b: int, bits: int) -> int:
    return a << b if 0 <= b < bits else 0


def _shift_right(a: int, b: int, bits: int) -> int:
    return a >> (b if 0 <= b < bits else bits)


MEANING: list[Callable[[int, int, int], int]] = [
    lambda a, b, n: a + b,
    lambda a, b, n: a - b,
    lambda a, b, n: a * b,
    lambda a, b, n: a // b if b else 0,
    lambda a, b, n: a % b if b else 0,
    _shift_left,
    _shift_right,
    lambda a, b, n: (a * b) >> n,
    lambda a, b, n: -a,
    lambda a, b, n: abs(a),
    lambda a, b, n: max(a, b),
    lambda a, b, n: min(a, b),
    lambda a, b, n: a & b,
    lambda a, b, n: a | b,
    lambda a, b, n: a ^ b,
    lambda a, b, n: ~a,
]


def wrapped(value: int, dtype: ts.DType) -> int:
    value %= 1 << dtype.bits
    return value - (1 << dtype.bits) if dtype.kind == "int" and value >> (dtype.bits - 1) else value


def extremes(dtype: ts.DType) -> list[int]:
    info = np.iinfo(dtype.numpy())
    near = [0, 1, 2, 3, 7, dtype.bits - 1, dtype.bits, dtype.bits + 1, info.max // 2, info.max - 1, info.max]
    near += [1 << dtype.bits // 2, (1 << dtype.bits // 2) + 1]
    below = [-1, -2, -7, -dtype.bits, info.min + 1, info.min] if dtype.kind == "int" else []
    return near + below


def arithmetic(dtype: ts.DType) -> Any:
    @ts.kernel
    def tiles_and_scalars(
        a: ts.Tensor["n", dtype],
        b: ts.Tensor["n", dtype],
        y: ts.Tensor[16, "n", dtype],
        z: ts.Tensor[16, "n", dtype],
    ):
        for i in ts.tile.grid((n, 64)):
            found = results(a[i : i + 64], b[i : i + 64])
            for k in ts.tile.static_range(16):
                y[k, i : i + 64] = found[k]
            for j in ts.tile.range(i, ts.tile.minimum(i + 64, n)):
                alone = results(a[j], b[j])
                for k in ts.tile.static_range(16):
                    z[k, j] = alone[k]
        return y, z

    return tiles_and_scalars


def conversion(source: ts.DType, target: ts.DType) -> Any:
    @ts.kernel
    def tiles_and_scalars(x: ts.Tensor["n", source], y: ts.Tensor["n", target], z: ts.Tensor["n", target]):
        for i in ts.tile.grid((n, 32)):
            y[i : i + 32] = x[i : i + 32].to(target)
            for j in ts.tile.range(i, ts.tile.minimum(i + 32, n)):
                z[j] = x[j].to(target)
        return y, z

    return tiles_and_scalars


def both(kernel: Any, *args: Any) -> list[Any]:
    """Return the results of the compiled kernel and of the interpreter."""
    copies = [arg.copy() for arg in args]
    return [*kernel(*args), *run(kernel.signature.function, *copies)]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_arithmetic_wraps_and_never_traps(dtype):
    pairs = [(a, b) for a in extremes(dtype) for b in extremes(dtype)]
    a, b = (np.array(column, dtype.numpy()) for column in zip(*pairs, strict=True))
    wanted = [[wrapped(meaning(x, y, dtype.bits), dtype) for x, y in pairs] for meaning in MEANING]
    for got in both(arithmetic(dtype), a, b, *(np.zeros((16, len(pairs)), dtype.numpy()) for _ in range(2))):
        for row, expected in zip(got.tolist(), wanted, strict=True):
            assert row == expected


SHIFTS = (7, 15, 16, 17, 24, 31, 32, 40, 48, 63)


def products(source: ts.DType, wide: ts.DType, narrow: ts.DType) -> Any:
    """Return a kernel that keeps few bits of products that were computed in more."""

    @ts.kernel
    def parts_of_products(
        a: ts.Tensor["n", source], b: ts.Tensor["n", source], y: ts.Tensor[1 + 2 * len(SHIFTS), "n", narrow]
    ):
        for i in ts.tile.grid((n, 64)):
            left, right = a[i : i + 64].to(wide), b[i : i + 64].to(wide)
            y[0, i : i + 64] = ts.tile.mulhi(left, right).to(narrow)
            for k in ts.tile.static_range(len(SHIFTS)):
                y[1 + 2 * k, i : i + 64] = ((left * right) >> SHIFTS[k]).to(narrow)
                y[2 + 2 * k, i : i + 64] = ((left * right) // (1 << min(SHIFTS[k], wide.bits - 2))).to(narrow)

    return parts_of_products


@pytest.mark.parametrize("narrow", [ts.i16, ts.u8], ids=str)
@pytest.mark.parametrize("wide", [ts.i32, ts.u32, ts.i64, ts.u64], ids=str)
@pytest.mark.parametrize("source", [ts.i16, ts.u16, ts.i8], ids=str)
def test_high_bits_of_products_of_narrow_integers(source, wide, narrow):
    """LLVM 22 takes bits of 32-bit products for those beyond the 32nd of wider ones (LLVM issue 218844)."""
    pairs = [(a, b) for a in extremes(source) for b in extremes(source)]
    a, b = (np.array(column, source.numpy()) for column in zip(*pairs, strict=True))
    wholes = [wrapped(wrapped(x, wide) * wrapped(y, wide), wide) for x, y in pairs]
    wanted = [[(wrapped(x, wide) * wrapped(y, wide)) >> wide.bits for x, y in pairs]]
    for shift in SHIFTS:
        wanted.append([_shift_right(whole, shift, wide.bits) for whole in wholes])
        wanted.append([whole >> min(shift, wide.bits - 2) for whole in wholes])
    y = np.zeros((len(wanted), len(pairs)), narrow.numpy())
    products(source, wide, narrow)(a, b, y)
    for got, expected in zip(y.tolist(), wanted, strict=True):
        assert got == [wrapped(value, narrow) for value in expected]


@pytest.mark.parametrize("target", INTEGERS, ids=str)
@pytest.mark.parametrize("source", FLOATS, ids=str)
def test_floats_saturate_to_integers(source, target):
    info = np.iinfo(target.numpy())
    top = float(ml_dtypes.finfo(source.numpy()).max)
    ends = [float(info.min), float(info.max), float(info.max) / 2, float(info.min) / 2, float(info.max) * 2]
    values = [
        0.0,
        -0.0,
        0.5,
        -0.5,
        1.75,
        -1.75,
        100.0,
        -100.0,
        1e-30,
        top,
        -top,
        math.inf,
        -math.inf,
        math.nan,
        *ends,
    ]
    values += [math.nextafter(end, toward) for end in ends for toward in (0.0, math.inf, -math.inf)]
    with np.errstate(all="ignore"):
        x = np.array(values).astype(source.numpy())

    def meaning(value: float) -> int:
        if math.isnan(value):
            return 0
        return (
            min(max(math.trunc(value), info.min), info.max)
            if math.isfinite(value)
            else (info.max if value > 0 else info.min)
        )

    wanted = [meaning(float(value)) for value in x]
    for got in both(conversion(source, target), x, *(np.zeros(len(x), target.numpy()) for _ in range(2))):
        assert got.tolist() == wanted


@pytest.mark.parametrize("target", INTEGERS, ids=str)
def test_integers_wrap_to_narrower_ones(target):
    for source in (ts.i8, ts.i64, ts.u32, ts.u64):
        x = np.array(extremes(source), source.numpy())
        wanted = [wrapped(value, target) for value in extremes(source)]
        for got in both(conversion(source, target), x, *(np.zeros(len(x), target.numpy()) for _ in range(2))):
            assert got.tolist() == wanted


@pytest.mark.parametrize("name", ["f32", "f16", "bf16", "fp8_e4m3", "fp8_e5m2"])
def test_saturating_casts_have_no_infinities(name):
    @ts.kernel
    def saturated(x: ts.Tensor["n", ts.f64], y: ts.Tensor["n", ts.f64]):
        for i in ts.tile.grid((n, 8)):
            y[i : i + 8] = x[i : i + 8].to(f"{name} @saturate").to(ts.f64)
        return y

    top = float(ml_dtypes.finfo(getattr(ts, name).numpy()).max)
    x = np.array([math.inf, -math.inf, 1e300, -1e300, math.nan, 0.0, -0.0, 1.0])
    wanted = np.array([top, -top, top, -top, math.nan, 0.0, -0.0, 1.0])
    compiled = saturated(x, np.zeros(8))
    for got in (compiled, run(saturated.signature.function, x, np.zeros(8))):
        np.testing.assert_array_equal(got, wanted)
        assert np.array_equal(np.signbit(got)[5:7], [False, True])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_signs_of_zero_are_ordered_under_strict(dtype):
    @ts.kernel
    def extreme(x: ts.Tensor["n", dtype], y: ts.Tensor["n", dtype], z: ts.Tensor[2, "n", dtype]):
        for i in ts.tile.grid((n, 8)):
            z[0, i : i + 8] = ts.tile.maximum(x[i : i + 8], y[i : i + 8])
            z[1, i : i + 8] = ts.tile.minimum(x[i : i + 8], y[i : i + 8])
        return z

    x, y = (
        np.array(values, dtype.numpy()) for values in ([0.0, 0.0, -0.0, -0.0, 1.0], [0.0, -0.0, 0.0, -0.0, math.nan])
    )
    with ts.numerics.profile("strict"):
        compiled = extreme(x, y, np.zeros((2, 5), dtype.numpy()))
    for got in (compiled, run(extreme.signature.function, x, y, np.zeros((2, 5), dtype.numpy()))):
        assert np.signbit(got[:, :4]).tolist() == [[False, False, False, True], [False, True, True, True]]
        assert np.isnan(got[:, 4].astype(np.float32)).all()


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_gpus_divide_without_a_zero_divisor(target):
    """The divisor of every division is selected, and the dividend is 0 where it was 0."""
    text = ts.compile(arithmetic(ts.i32), target=target, dump=["ll"]).dumps["ll"]
    assert "sdiv" in text
    lines = {line.split(" = ")[0].strip(): line for line in text.splitlines() if " = " in line}
    for line in (line for line in lines.values() if " sdiv " in line):
        dividend, divisor = line.split(" sdiv ")[1].split(" ", 1)[1].split(", ")[:2]
        assert " select " in lines[divisor.split(",")[0].strip()]
        assert " select " in lines[dividend.strip()]
