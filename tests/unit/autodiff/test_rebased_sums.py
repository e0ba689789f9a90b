"""Sums against a running maximum whose adjoint may not take the last maximum: float64 differences say what is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts

X, Y = ts.Tensor["M", "N", ts.f64], ts.Tensor["M", ts.f64]


@ts.kernel
def stores_in_the_loop(x: X, p: X, y: Y) -> None:
    for (m,) in ts.tile.grid((M, 4)):
        top, total = ts.tile.full((4,), -1e30, ts.f64), ts.tile.zeros((4,), ts.f64)
        for n in ts.tile.range(0, N, 8):
            s = x[m : m + 4, n : n + 8]
            new = ts.tile.maximum(top, ts.tile.max(s, 1))
            weights = ts.tile.exp(s - new[:, None])
            p[m : m + 4, n : n + 8] = weights
            total = total * ts.tile.exp(top - new) + ts.tile.sum(weights, 1)
            top = new
        y[m : m + 4] = top + ts.tile.log(total)


@ts.kernel
def over_rows(x: X, p: X, y: Y) -> None:
    for (m,) in ts.tile.grid((M, 4)):
        top, total = ts.tile.full((4,), -1e30, ts.f64), ts.tile.zeros((4,), ts.f64)
        for n in ts.tile.range(0, N, 8):
            s = x[m : m + 4, n : n + 8]
            new = ts.tile.maximum(top, ts.tile.max(s, 1))
            total = total * ts.tile.exp(top - new) + ts.tile.sum(ts.tile.exp(s - new[:, None]), 1)
            top = new
        y[m : m + 4] = total / ts.tile.sum(total, 0)


@pytest.mark.parametrize("kernel", [stores_in_the_loop, over_rows], ids=lambda one: one.__name__)
def test_beside_differences(kernel: Callable[..., Any]) -> None:
    rng = np.random.default_rng(0)
    x, along = (rng.standard_normal((4, 16)) * 2 for _ in range(2))
    cp, cy = rng.standard_normal((4, 16)), rng.standard_normal(4)

    def results(x: Any) -> tuple[Any, Any]:
        p, y = np.zeros((4, 16)), np.zeros(4)
        kernel(x, p, y)
        return p, y

    def value(x: Any) -> float:
        p, y = results(x)
        return float((p * cp).sum() + (y * cy).sum())

    p, y = results(x)
    cotangents = {"y": cy} | ({"p": cp} if kernel is stores_in_the_loop else {})
    slope = ts.pullback(kernel, ("x",))(x, p, y, cotangents=cotangents)
    step = 1e-6
    wanted = (value(x + step * along) - value(x - step * along)) / (2 * step)
    assert abs(float((slope["x"] * along).sum()) - wanted) <= 1e-6 * (1 + abs(wanted))
