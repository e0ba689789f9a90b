"""Kernels of logarithms of running sums of exponentials, block by block."""

from __future__ import annotations

from typing import Any

import tessera as ts
from tessera.ops.annotations import Constant

T = ts.dtype_var("T", ts.bf16, ts.f16, ts.f32, ts.f64)
A, N, B = ts.dims("A N B")


@ts.function
def added(a: Any, b: Any, c: Any, d: Any) -> Any:
    """Return `exp(a)·b + exp(c)·d` as such a pair: the larger exponent, and a sum."""
    most = ts.tile.maximum(a, c)
    apart = ts.tile.where(a == c, 0.0, ts.tile.minimum(a, c) - most)  # equal infinities too
    less = ts.tile.exp(apart)
    return most, ts.tile.where(a >= c, b + d * less, b * less + d)


@ts.function
def running(block: Any, most: Any, total: Any, axis: Any) -> Any:
    """Return the pairs of a block, with what came before."""
    found, sums = ts.tile.scan((block, ts.tile.full(block.shape, 1.0, block.dtype)), axis, added)
    return added(most, total, found, sums)


@ts.kernel
def rows(x: ts.Tensor[A, N, T], y: ts.Tensor[A, N, T], acc: Constant, BA: Constant, BN: Constant):
    """Logarithms along rows."""
    for a in ts.tile.grid((A, BA)):
        most, total = ts.tile.full((BA,), -float("inf"), acc), ts.tile.zeros((BA,), acc)
        for n in ts.tile.range(0, N, BN):
            block = ts.tile.load(x[a : a + BA, n : n + BN], fill=-float("inf")).to(acc)
            found, sums = running(block, most[:, None], total[:, None], 1)
            y[a : a + BA, n : n + BN] = found + ts.tile.log(sums)
            most, total = found[:, BN - 1], sums[:, BN - 1]


@ts.kernel
def columns(x: ts.Tensor[A, N, B, T], y: ts.Tensor[A, N, B, T], acc: Constant, BN: Constant, BB: Constant):
    """The same along a dimension in the middle."""
    for a, b in ts.tile.grid((A, 1), (B, BB)):
        most, total = ts.tile.full((BB,), -float("inf"), acc), ts.tile.zeros((BB,), acc)
        for n in ts.tile.range(0, N, BN):
            block = ts.tile.load(x[a, n : n + BN, b : b + BB], fill=-float("inf")).to(acc)
            found, sums = running(block, most[None, :], total[None, :], 0)
            y[a, n : n + BN, b : b + BB] = found + ts.tile.log(sums)
            most, total = found[BN - 1, :], sums[BN - 1, :]
