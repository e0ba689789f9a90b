"""Dtype variables and optional tensors: one kernel for each dtype, and None at compile time."""

from __future__ import annotations

import copy

import ml_dtypes
import numpy as np
import pytest

import tessera as ts

T = ts.dtype_var("T", ts.f16, ts.bf16, ts.f32, ts.f64, ts.i32)
U = ts.dtype_var("U")


@ts.kernel
def scaled(x: ts.Tensor["n", T], y: ts.Tensor["n", T], a: float) -> ts.Tensor["n", T]:
    for i in ts.tile.grid((n, 64)):
        y[i : i + 64] = ts.tile.cast(x[i : i + 64] * a, T) + ts.tile.full((64,), 1, T)
    return y


@ts.kernel
def linear(
    x: ts.Tensor["m", "k", U],
    w: ts.Tensor["k", "n", U],
    y: ts.Tensor["m", "n", ts.f32],
    bias: ts.Tensor["n", ts.f32] | None = None,
    residual: ts.Tensor["m", "n", U] | None = None,
):
    for i, j in ts.tile.grid((m, 16), (n, 32)):
        total = ts.tile.zeros((16, 32), ts.f32)
        for p in ts.tile.range(0, k, 16):
            total = ts.tile.mma(x[i : i + 16, p : p + 16], w[p : p + 16, j : j + 32], total)
        if bias is not None:
            total = total + bias[j : j + 32]
        y[i : i + 16, j : j + 32] = total if residual is None else total + residual[i : i + 16, j : j + 32]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.int32])
def test_a_kernel_for_each_dtype(dtype) -> None:
    x = np.arange(100).astype(dtype)
    y = np.zeros_like(x)
    assert scaled(x, y, 2.0) is y
    np.testing.assert_array_equal(y.astype(np.float64), 2.0 * x.astype(np.float64) + 1)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("has_residual", [False, True])
def test_tensors_that_may_be_missing(dtype, has_bias: bool, has_residual: bool) -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-4, 4, shape).astype(dtype) for shape in ((20, 24), (24, 40)))
    bias = rng.integers(-4, 4, 40).astype(np.float32) if has_bias else None
    residual = rng.integers(-4, 4, (20, 40)).astype(dtype) if has_residual else None
    y = np.full((20, 40), np.nan, np.float32)
    linear(x, w, y, bias, residual=residual)
    expected = x.astype(np.float64) @ w.astype(np.float64)
    expected = expected + (0 if bias is None else bias) + (0 if residual is None else residual.astype(np.float64))
    np.testing.assert_array_equal(y, expected)


def test_what_is_left_out_is_missing() -> None:
    x, w, y = np.eye(16, dtype=np.float32), np.eye(16, dtype=np.float32), np.zeros((16, 16), np.float32)
    linear(x, w, y)
    np.testing.assert_array_equal(y, np.eye(16))
    assert linear.explain().kernel == "linear"


def test_one_variable_is_one_dtype() -> None:
    with pytest.raises(ts.CallError, match="'y' is f64, 'x' is f32: both have the dtype T") as caught:
        scaled(np.zeros(8, np.float32), np.zeros(8), 1.0)
    assert caught.value.code == "wrong-dtype"


def test_a_dtype_that_is_no_choice() -> None:
    with pytest.raises(ts.CallError, match="argument 'x' is i8, T is one of f16, bf16, f32, f64, i32"):
        scaled(np.zeros(8, np.int8), np.zeros(8, np.int8), 1.0)


def test_a_missing_argument_that_has_to_be_there() -> None:
    with pytest.raises(ts.CallError, match=r"argument 'y' of scaled is missing"):
        scaled(np.zeros(8, np.float32), a=1.0)


def test_compiling_takes_dtypes_by_name() -> None:
    with_bias = ts.compile(linear, target="sm_80", U=ts.bf16, residual=None)
    assert [arg.name for arg in with_bias.args] == ["x", "w", "y", "bias"]
    assert [arg.dtype for arg in with_bias.args] == ["bf16", "bf16", "f32", "f32"]
    plain = linear.specialize(U="f16", bias=None, residual=None)
    assert [param.name for param in plain.signature.tensors] == ["x", "w", "y"]
    with pytest.raises(ts.CallError, match="the dtype U of linear is not given"):
        ts.compile(linear, target="cpu")
    with pytest.raises(ts.CallError, match="no dtype variable 'V'"):
        linear.specialize(U=ts.f32, V=ts.f32)


def test_kernels_are_copied_by_name() -> None:
    assert copy.deepcopy(scaled) is scaled


def test_tuned_kernels_may_be_open() -> None:
    @ts.kernel.autotune(space=dict(B=[32, 64]), key=("n",))
    def copied(x: ts.Tensor["n", U], y: ts.Tensor["n", U]):
        ctx = ts.tile.context()
        for i in ts.tile.grid((n, ctx.B)):
            y[i : i + ctx.B] = x[i : i + ctx.B]

    for dtype in (np.int8, np.float64):
        x = np.arange(70).astype(dtype)
        y = np.zeros_like(x)
        copied(x, y)
        np.testing.assert_array_equal(x, y)
    with pytest.raises(ts.LanguageError, match="autotune key 'q'"):
        ts.kernel.autotune(space=dict(B=[32]), key=("q",))(copied.__wrapped__)


def test_names_of_dtypes_are_identifiers() -> None:
    with pytest.raises(ts.LanguageError, match="cannot name a dtype"):
        ts.dtype_var("a b")
