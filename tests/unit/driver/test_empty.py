"""Arrays without elements: empty in, empty out; a typed error where something would have to be stored."""

from typing import Any

import numpy as np
import pytest

import tessera as ts


@ts.kernel
def softmax(x: ts.Tensor["m", "n", ts.f32], w: ts.Tensor["n", ts.f32], y: ts.Tensor["m", "n", ts.f32]):
    for i in ts.tile.grid((m, 4)):
        row = x[i : i + 4, :] * w[:]
        e = ts.tile.exp(row - ts.tile.max(row, 1)[:, None])
        y[i : i + 4, :] = e / ts.tile.sum(e, 1)[:, None]
    return y


@ts.kernel
def whole(x: ts.Tensor["m", "n", ts.f32], w: ts.Tensor["n", ts.f32], y: ts.Tensor["m", "n", ts.f32]):
    y[:, :] = x[:, :].T.T + w[:]


@ts.kernel
def loop(x: ts.Tensor["m", "n", ts.f32], w: ts.Tensor["n", ts.f32], y: ts.Tensor["m", "n", ts.f32]):
    for i in ts.tile.grid((m, 4)):
        total = ts.tile.zeros((4, n), ts.f32)
        for _ in ts.tile.range(3):
            total = total + x[i : i + 4, :]
        y[i : i + 4, :] = total


@ts.kernel
def sums(x: ts.Tensor["m", "n", ts.f32], w: ts.Tensor["n", ts.f32], y: ts.Tensor["m", ts.f32]):
    for i in ts.tile.grid((m, 4)):
        y[i : i + 4] = ts.tile.sum(x[i : i + 4, :], 1)


@pytest.mark.parametrize("interpreted", [False, True])
@pytest.mark.parametrize("rows", [0, 5])
@pytest.mark.parametrize("kernel", [softmax, whole, loop])
def test_rows_without_elements_give_rows_without_elements(
    kernel: Any, rows: int, interpreted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TESSERA_INTERPRET", str(int(interpreted)))
    x, y, some = np.zeros((rows, 0), np.float32), np.zeros((rows, 0), np.float32), np.ones((8, 8), np.float32)
    for _ in range(3):
        returned = kernel(x, np.zeros(0, np.float32), y)
        assert returned is (y if kernel is softmax else None)
    kernel(some, some[0], out := np.zeros_like(some))  # a size of its own
    assert out.any()


@pytest.mark.parametrize("target", ["cpu", "sm_80", "sm_90a"])
@pytest.mark.parametrize("kernel", [softmax, whole])
def test_programs_for_rows_without_elements_compile(kernel: Any, target: str) -> None:
    artifact = ts.compile(kernel, target=target, dims={"m": 5, "n": 0} if kernel is whole else {"n": 0})
    assert artifact.args[0].sizes[1] == 0


@pytest.mark.parametrize("rows", [1, 5])
def test_what_rows_without_elements_sum_to_is_not_said(rows: int) -> None:
    x, y = np.zeros((rows, 0), np.float32), np.full(rows, 7, np.float32)
    with pytest.raises(ts.TypeMismatchError) as caught:
        sums(x, x[0], y)
    assert caught.value.code == "empty-tile"
    assert caught.value.location is not None
    assert (y == 7).all()
