"""`ts.pullback`: how it is called, and what holds of every gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tests.unit.autodiff.slopes import check_slopes, numbers

T = ts.dtype_var("T", ts.f32, ts.f64, ts.bf16)


@ts.kernel
def affine(x: ts.Tensor["m", "n", T], w: ts.Tensor["n", T], b: ts.Tensor["n", T] | None, y: ts.Tensor["m", "n", T]):
    for i, j in ts.tile.grid((m, 4), (n, 16)):
        t = ts.tile.sin(x[i : i + 4, j : j + 16]) * w[j : j + 16]
        if b is not None:
            t = t + b[j : j + 16]
        y[i : i + 4, j : j + 16] = t


def gradients_of(dtype: Any, rows: int = 11, columns: int = 21, make: Any = np.asarray) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    x, w, b, y, c = (
        make(rng.standard_normal(s).astype(dtype))
        for s in [(rows, columns), (columns,), (columns,), *[(rows, columns)] * 2]
    )
    return ts.pullback(affine)(x, w, b, y, cotangents=c)


def expected(dtype: Any, rows: int = 11, columns: int = 21) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    x, w, _, _, c = (
        rng.standard_normal(s).astype(dtype).astype(float)
        for s in [(rows, columns), (columns,), (columns,), *[(rows, columns)] * 2]
    )
    return {"x": c * np.cos(x) * w, "w": (c * np.sin(x)).sum(0), "b": c.sum(0)}


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=str)
def test_arrays_of_numpy(dtype: Any):
    found = gradients_of(dtype)
    assert [*found] == ["x", "w", "b"]
    for name, wanted in expected(dtype).items():
        assert found[name].dtype == dtype
        np.testing.assert_allclose(found[name], wanted, rtol=0, atol=1e-14 if dtype == np.float64 else 2e-6)


def test_tensors_of_torch():
    torch = pytest.importorskip("torch")
    found = gradients_of(np.float64, make=torch.from_numpy)
    for name, wanted in expected(np.float64).items():
        assert isinstance(found[name], torch.Tensor)
        np.testing.assert_allclose(found[name].numpy(), wanted, rtol=0, atol=1e-14)


def test_bf16_is_added_up_in_f32():
    torch = pytest.importorskip("torch")
    x = torch.ones(4096, 3, dtype=torch.bfloat16)
    w, y = torch.ones(3, dtype=torch.bfloat16), torch.zeros(4096, 3, dtype=torch.bfloat16)
    found = ts.pullback(affine, ["w"])(x, w, None, y, cotangents=x)
    # 4096 times sin(1), where sums in bf16 would stop at 256 times that.
    wanted = 4096 * float(torch.sin(torch.tensor(1.0)).bfloat16())
    assert abs(found["w"].float() / wanted - 1).max() < 1e-2


def test_sizes_of_any_call():
    pull = ts.pullback(affine, ["w"])
    for rows, columns in [(11, 21), (1, 1), (40, 3), (11, 21)]:
        x, w, y, c = numbers(rows, columns), numbers(columns), numbers(rows, columns), numbers(rows, columns)
        found = pull(x, w, None, y, cotangents=c)
        np.testing.assert_allclose(found["w"], (c * np.sin(x)).sum(0), rtol=0, atol=1e-13)


def test_arrays_without_elements():
    x, w, y = numbers(0, 3), numbers(3), numbers(0, 3)
    found = ts.pullback(affine)(x, w, None, y, cotangents=y)
    assert found["x"].shape == (0, 3)
    np.testing.assert_array_equal(found["w"], np.zeros(3))


def test_strides_of_any_kind():
    x, w, y, c = numbers(21, 11).T, numbers(42)[::2], numbers(11, 21), numbers(11, 42)[:, ::2]
    found = ts.pullback(affine)(x, w, None, y, cotangents=c)
    np.testing.assert_allclose(found["x"], c * np.cos(x) * w, rtol=0, atol=1e-14)
    np.testing.assert_allclose(found["w"], (c * np.sin(x)).sum(0), rtol=0, atol=1e-13)


def test_runs_give_the_same_bits():
    first = gradients_of(np.float32, 501, 77)
    for _ in range(9):
        again = gradients_of(np.float32, 501, 77)
        assert all(first[name].tobytes() == again[name].tobytes() for name in first)


def test_profiles_and_the_interpreter(monkeypatch: pytest.MonkeyPatch):
    with ts.numerics.profile("strict"):
        found = gradients_of(np.float64)
        monkeypatch.setenv("TESSERA_INTERPRET", "1")
        again = gradients_of(np.float64)
    for name, wanted in expected(np.float64).items():
        np.testing.assert_allclose(found[name], wanted, rtol=0, atol=1e-14)
        np.testing.assert_array_equal(found[name], again[name])


@ts.kernel
def histogram(x: ts.Tensor["n", ts.f64], bins: ts.Tensor["n", ts.i32], y: ts.Tensor["m", ts.f64]):
    for i in ts.tile.grid((m, 8)):
        y[i : i + 8] = ts.tile.zeros((8,), ts.f64)
    for i in ts.tile.grid((n, 8)):
        t = x[i : i + 8]
        ts.tile.atomic_add(y[bins[i : i + 8]], t * t)


def test_sums_by_atomics():
    bins = np.array([0, 3, 3, 1, 0, 3, 7, 2, 2, 2, 5], np.int32)
    check_slopes(histogram, dict(x=numbers(11), bins=bins, y=numbers(6)), ["y"], ["x"])


@ts.kernel
def through_memory(x: ts.Tensor["m", "n", ts.f64], t: ts.Tensor["m", ts.f64], y: ts.Tensor["m", "n", ts.f64]):
    for i in ts.tile.grid((m, 4)):
        t[i : i + 4] = ts.tile.sum(x[i : i + 4, :], axis=1)
    for i, j in ts.tile.grid((m, 4), (n, 8)):
        y[i : i + 4, j : j + 8] = ts.tile.sin(t[i : i + 4])[:, None] * x[i : i + 4, j : j + 8]


def test_what_is_overwritten_has_no_influence():
    arguments: dict[str, Any] = dict(x=numbers(7, 11), t=numbers(7), y=numbers(7, 11))
    found = check_slopes(through_memory, arguments, ["y"], ["x", "t"])
    np.testing.assert_array_equal(found["t"], np.zeros(7))


@ts.kernel
def guarded(x: ts.Tensor["m", "n", ts.f64], w: ts.Tensor["n", ts.f64], y: ts.Tensor["m", ts.f64]):
    for i in ts.tile.grid((m, 8)):
        t = x[i : i + 8, :]
        y[i : i + 8] = ts.tile.sum(ts.tile.log(t) / t * w[:], axis=1)


def test_rows_outside_of_tensors_have_no_influence():
    # The logarithm of what lies outside is −∞: it must not reach the sum along the rows.
    x, w, c = numbers(11, 8, low=1.0, high=2.0), numbers(8), numbers(11)
    found = ts.pullback(guarded)(x, w, np.zeros(11), cotangents=c)
    np.testing.assert_allclose(found["w"], c @ (np.log(x) / x), rtol=0, atol=1e-13)
    np.testing.assert_allclose(found["x"], c[:, None] * w * (1 - np.log(x)) / x**2, rtol=0, atol=1e-13)


@ts.kernel
def shares(x: ts.Tensor["m", "n", ts.f64], y: ts.Tensor["m", ts.f64]):
    for i in ts.tile.grid((m, 4)):
        y[i : i + 4] = ts.tile.max(x[i : i + 4, :], axis=1)


def test_equal_extremes_have_equal_shares():
    x = np.array([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0], [5.0, 1.0, 0.0]])
    found = ts.pullback(shares)(x, np.zeros(3), cotangents=np.array([1.0, 6.0, 2.0]))
    np.testing.assert_allclose(found["x"], [[0, 0.5, 0.5], [2, 2, 2], [2, 0, 0]], rtol=0, atol=1e-15)


@ts.kernel
def with_a_counter(x: ts.Tensor["n", ts.f64], order: ts.Tensor["n", ts.i32], y: ts.Tensor[1, ts.f64]):
    for _ in ts.tile.grid((1, 1)):
        at = order[0]
        total = 1.0 + 0.0 * x[0]
        for _ in ts.tile.range(n):
            total = total * (1.0 + x[at])
            at = order[at]
        y[0] = total


def test_loops_may_carry_indices():
    order = np.array([3, 2, 0, 4, 1], np.int32)
    found = check_slopes(with_a_counter, dict(x=numbers(5), order=order, y=np.zeros(1)), ["y"], ["x"])
    assert found["x"].shape == (5,)


def test_histories_beside_tensors_of_torch():
    torch = pytest.importorskip("torch")
    x, order = torch.full((5,), 0.5, dtype=torch.float64), torch.tensor([3, 2, 0, 4, 1], dtype=torch.int32)
    y = torch.zeros(1, dtype=torch.float64)
    found = ts.pullback(with_a_counter)(x, order, y, cotangents=torch.ones_like(y))
    # x[0] goes into 1 + 0 · x[0] too; each of the five factors 1.5 is left out once.
    np.testing.assert_allclose(found["x"].numpy(), [1.5**4] * 5, rtol=1e-14)


@ts.kernel
def with_a_step(x: ts.Tensor["n", ts.f64], y: ts.Tensor["n", ts.f64], step: ts.i64):
    for _ in ts.tile.grid((1, 1)):
        h = 0.0 * x[0]
        for i in ts.tile.range(0, n, step):
            h = ts.tile.sin(h + x[i])
            y[i] = h


def test_steps_known_at_the_call_only():
    check_slopes(with_a_step, dict(x=numbers(17), y=np.zeros(17), step=3), ["y"], ["x"])


@pytest.mark.parametrize("added", [True, False], ids=["added", "stored"])
def test_a_sum_without_dimensions(added: bool):
    @ts.kernel
    def squares(x: ts.Tensor["n", ts.f32], scale: ts.Tensor[ts.f32], y: ts.Tensor[ts.f32], added: ts.constexpr):
        for i in ts.tile.grid((n if added else 1, 4 if added else 8)):
            v = x[i : i + 4] if added else x[0:8]
            if added:
                ts.tile.atomic_add(y[...], (v * v * scale[...]).sum())
            else:
                y[...] = (v * v * scale[...]).sum()

    x, scale, y = np.arange(6, dtype=np.float32), np.array(2, np.float32), np.array(0, np.float32)
    squares(x, scale, y, added)
    assert y == 2 * np.sum(x * x)
    found = ts.pullback(squares)(x, scale, y, added, cotangents=np.array(3, np.float32))
    np.testing.assert_array_equal(found["x"], 12 * x)
    assert found["scale"] == 3 * np.sum(x * x)
