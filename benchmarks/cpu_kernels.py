"""The kernels that `cpu.py` measures and the examples lack: the tile code of a GPU, nothing said of the CPU."""

import functools
from typing import Any

import tessera as ts


@functools.cache
def residual_dropout_for(dtype: ts.DType) -> Any:
    """Return `R + dropout(X)` over rows: the counter of an element is its number, so any grid gives the same."""

    @ts.kernel
    def residual_dropout(
        X: ts.Tensor["M", "N", dtype],
        R: ts.Tensor["M", "N", dtype],
        Y: ts.Tensor["M", "N", dtype],
        p: ts.f32,
        seed: ts.i64,
    ):
        for m, n in ts.tile.grid((M, 1), (N, 1024)):
            kept = ts.tile.dropout(
                ts.tile.cast(X[m, n : n + 1024], ts.f32), p, seed, ts.tile.arange(1024) + (m * N + n)
            )
            Y[m, n : n + 1024] = kept + R[m, n : n + 1024]
        return Y

    return residual_dropout


@ts.kernel
def four(
    a: ts.Tensor["n", ts.f32], b: ts.Tensor["n", ts.f32], c: ts.Tensor["n", ts.f32], d: ts.Tensor["n", ts.f32]
):
    """Add three arrays: a call of one element costs what the call costs."""
    for i in ts.tile.grid((n, 64)):
        d[i : i + 64] = a[i : i + 64] + b[i : i + 64] + c[i : i + 64]


@ts.kernel
def copy(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    """Copy an array: the rate that kernels of one read and one write are measured by."""
    for i in ts.tile.grid((n, 4096)):
        y[i : i + 4096] = x[i : i + 4096]
