"""Shape changes, reductions, scans, matrix products, random numbers and prints."""

from __future__ import annotations

import io

import ml_dtypes
import numpy as np
import pytest

from tessera.interp import interpret
from tessera.interp.random import philox4x32
from tessera.ir.tile import debug, elementwise, mma, random, reduce, shape
from tessera.ir.types import element_type, i1
from tessera.numerics import dtypes
from tests.unit.interp.kernels import evaluate, tensor_kernel
from tests.unit.ir.samples import F32, I64

RNG = np.random.default_rng(11)


def test_reshape_transpose_broadcast() -> None:
    x = RNG.standard_normal((3, 4)).astype(np.float32)
    assert np.array_equal(evaluate(lambda at, t: at(shape.ReshapeOp(t, [2, 6])), x), x.reshape(2, 6))
    assert np.array_equal(evaluate(lambda at, t: at(shape.TransposeOp(t, [1, 0])), x), x.T)
    wide = evaluate(lambda at, t: at(shape.BroadcastOp(at(shape.ReshapeOp(t, [3, 1, 4])), [3, 5, 4])), x)
    assert np.array_equal(wide, np.repeat(x[:, None], 5, 1))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("fn", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("dtype", [dtypes.f64, dtypes.f32, dtypes.bf16, dtypes.i32, dtypes.u8], ids=str)
def test_reduce(dtype: dtypes.DType, fn: str, axis: int) -> None:
    x = RNG.integers(1, 4, (5, 7)).astype(dtype.numpy())
    exact = getattr(np, fn)(x.astype(np.float64 if dtype.is_float else np.int64), axis=axis)
    wanted = exact.astype(np.float64).astype(dtype.numpy()) if dtype.is_float else exact.astype(dtype.numpy())
    got = evaluate(lambda at, t: at(reduce.ReduceOp(t, axis, fn)), x)
    assert got.dtype == dtype.numpy()
    assert np.array_equal(got, wanted)


def test_sums_of_f32_are_rounded_once() -> None:
    x = (RNG.standard_normal(4096) * 1e3).astype(np.float32)
    got = evaluate(lambda at, t: at(reduce.ReduceOp(t, 0, "sum")), x)
    assert got == np.float32(np.sum(x.astype(np.float64)))


def test_max_propagates_nan_and_bools_reduce() -> None:
    x = np.array([[1, np.nan], [2, 3]], np.float32)
    got = evaluate(lambda at, t: at(reduce.ReduceOp(t, 1, "max")), x)
    assert np.isnan(got[0])
    assert got[1] == 3
    flags = np.array([[True, False], [True, True]])
    assert evaluate(lambda at, t: at(reduce.ReduceOp(t, 1, "any")), flags).tolist() == [True, True]
    assert evaluate(lambda at, t: at(reduce.ReduceOp(t, 1, "all")), flags).tolist() == [False, True]


@pytest.mark.parametrize("reverse", [False, True])
def test_scan(reverse: bool) -> None:
    x = RNG.integers(0, 5, (3, 6)).astype(np.int32)
    got = evaluate(lambda at, t: at(reduce.ScanOp(t, 1, "sum", reverse)), x)
    wanted = np.flip(np.cumsum(np.flip(x, 1), 1), 1) if reverse else np.cumsum(x, 1)
    assert np.array_equal(got, wanted)
    top = evaluate(lambda at, t: at(reduce.ScanOp(t, 0, "max", reverse)), x)
    assert np.array_equal(
        top, np.flip(np.maximum.accumulate(np.flip(x, 0)), 0) if reverse else np.maximum.accumulate(x)
    )


def product(a: np.ndarray, b: np.ndarray, acc: np.ndarray, compute: str) -> np.ndarray:
    return evaluate(lambda at, x, y, z: at(mma.MmaOp(x, y, z, compute)), a, b, acc)


@pytest.mark.parametrize("dtype", [dtypes.f64, dtypes.f32, dtypes.f16, dtypes.bf16, dtypes.fp8_e4m3], ids=str)
def test_mma_accumulates_in_the_accumulators_type(dtype: dtypes.DType) -> None:
    a, b = (RNG.standard_normal(s).astype(dtype.numpy()) for s in ((12, 20), (20, 8)))
    acc = RNG.standard_normal((12, 8)).astype(np.float64 if dtype.name == "f64" else np.float32)
    exact = acc + a.astype(np.float64) @ b.astype(np.float64)
    got = product(a, b, acc, dtype.name)
    assert got.dtype == acc.dtype
    assert np.allclose(got, exact, rtol=1e-14 if dtype.name == "f64" else 2e-6, atol=1e-5)


def test_mma_of_integers_is_exact_and_wraps() -> None:
    a, b = (RNG.integers(-128, 128, s).astype(np.int8) for s in ((4, 300), (300, 4)))
    acc = np.full((4, 4), 2**31 - 1, np.int32)
    wanted = (acc.astype(np.int64) + a.astype(np.int64) @ b.astype(np.int64)).astype(np.int32)
    assert np.array_equal(product(a, b, acc, "i8"), wanted)


def test_tf32_rounds_the_operands_first() -> None:
    a, b = np.full((1, 1), 1 + 2.0**-12, np.float32), np.ones((1, 1), np.float32)
    assert product(a, b, np.zeros((1, 1), np.float32), "tf32")[0, 0] == 1.0
    assert product(a, b, np.zeros((1, 1), np.float32), "f32")[0, 0] == a[0, 0]


def test_mixed_fp8_operands() -> None:
    a, b = np.full((2, 4), 1.5, ml_dtypes.float8_e4m3fn), np.full((4, 2), 3, ml_dtypes.float8_e5m2)
    assert np.array_equal(product(a, b, np.zeros((2, 2), np.float32), "fp8"), np.full((2, 2), 18, np.float32))


@pytest.mark.parametrize(
    ("counter", "key", "wanted"),
    # kat_vectors of Random123 (Salmon et al.): philox4x32, 10 rounds.
    [
        ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_known_answers(counter: tuple[int, ...], key: tuple[int, int], wanted: str) -> None:
    words = philox4x32(tuple(np.array([c], np.uint32) for c in counter), key)
    assert " ".join(f"{int(word[0]):08x}" for word in words) == wanted


def test_the_philox_op_takes_64_bit_counters_and_seeds() -> None:
    counters = np.array([0, 5, -1, 2**40 + 3], np.int64)
    seed = 0x0123456789ABCDEF

    def build(at, counter):
        op = random.PhiloxOp(at.const(seed, I64), counter)
        at.do(op)
        return op.r3

    low, high = counters.astype(np.uint64) & 0xFFFFFFFF, counters.astype(np.uint64) >> 32
    zero = np.zeros(4, np.uint32)
    wanted = philox4x32((low, high, zero, zero), (seed & 0xFFFFFFFF, seed >> 32))[3]
    assert np.array_equal(evaluate(build, counters), wanted)


def test_print_gives_a_line_per_element() -> None:
    def body(at, alpha):
        lanes = at(elementwise.ArangeOp(3, element_type(dtypes.i32)))
        at.do(debug.PrintOp("{} at {} ok {}", [alpha, lanes, at.const(1, i1)]))
        at.do(debug.PrintOp("done", []))

    out = io.StringIO()
    interpret(tensor_kernel([F32], body), [0.1], out=out)
    assert out.getvalue() == "0.1 at 0 ok 1\n0.1 at 1 ok 1\n0.1 at 2 ok 1\ndone\n"
