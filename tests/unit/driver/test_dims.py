"""Kernels whose dimensions are expressions of names: computed with, checked at every call, held by artefacts."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera.errors import CallError, TesseraError

N, K = ts.dims("N K")


@ts.kernel
def differences(x: ts.Tensor["n+1", ts.f32], y: ts.Tensor["n", ts.f32]):
    for i in ts.tile.grid((n, 8)):
        y[i : i + 8] = x[i + 1 : i + 9] - x[i : i + 8]


@ts.kernel
def alone(x: ts.Tensor["2*n-1", ts.f32], y: ts.Tensor["(n+3)//4", ts.i64]):
    for i in ts.tile.grid((1, 1)):
        y[i] = n


@ts.kernel
def full(x: ts.Tensor[N, ts.f32], w: ts.Tensor[K, ts.f32], y: ts.Tensor[N + K - 1, 2 * (N // 2), ts.f32]):
    for i in ts.tile.grid((y.shape[0], 1)):
        y[i, :] = ts.tile.sum(x[:]) * w[0]


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).integers(-9, 9, shape).astype(np.float32)


def test_a_sum():
    for size in (20, 20, 20, 7, 1, 0):
        x, y = drawn(size + 1), np.zeros(size, np.float32)
        differences(x, y)
        assert np.array_equal(y, np.diff(x))


def test_every_call_is_checked():
    x = drawn(21)
    for _ in range(4):  # from the third on, calls are direct
        differences(x, np.zeros(20, np.float32))
    for _ in range(4):
        with pytest.raises(CallError, match=r"n = 19.*n = 20"):
            differences(x, np.zeros(19, np.float32))


def test_a_name_that_stands_nowhere_alone():
    for n in (1, 8, 13, 13, 13):
        y = np.zeros((n + 3) // 4, np.int64)
        alone(drawn(2 * n - 1), y)
        assert y[0] == n
        with pytest.raises(CallError, match=r"\(n\+3\)//4 = "):
            alone(drawn(2 * n - 1), np.zeros((n + 3) // 4 + 1, np.int64))


def test_symbols_and_sizes_known_at_compile_time():
    x, w, y = drawn(7), drawn(3), np.zeros((9, 6), np.float32)
    full(x, w, y)
    assert np.array_equal(y, np.full((9, 6), x.sum() * w[0]))
    with pytest.raises(CallError, match="wrong-shape"):
        full(x, w, np.zeros((9, 7), np.float32))


@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
def test_artefacts_hold_them(target, tmp_path):
    artifact = ts.compile(alone, target=target, dims={"n": 9})
    assert artifact.reflection["shapes"] == {"x": ["2*n-1"], "y": ["(n+3)//4"]}
    artifact.save(tmp_path / "alone.art")
    loaded = ts.load(tmp_path / "alone.art")
    if target == "cpu":
        y = np.zeros(3, np.int64)
        loaded(drawn(17), y)
        assert y[0] == 9
        with pytest.raises(CallError, match="wrong-shape"):
            loaded(drawn(17), np.zeros(4, np.int64))


@pytest.mark.parametrize("n", [0, -1])
def test_sizes_below_zero_are_not_compiled_for(n):
    with pytest.raises(TesseraError, match="wrong-shape"):
        ts.compile(alone, target="cpu", dims={"n": n})
