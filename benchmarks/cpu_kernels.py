"""The kernels that `cpu.py` measures and the examples lack: the tile code of a GPU, nothing said of the CPU."""

import functools
from typing import Any

import tessera as ts


@functools.cache
def residual_dropout_for(dtype: ts.DType) -> Any:
    """Return `R + dropout(X)` over rows: a Philox block, four random words, serves four elements.

    The counter of an element depends on its place alone, so any grid gives the same.
    """

    @ts.kernel
    def residual_dropout(
        X: ts.Tensor["M", "N", dtype],
        R: ts.Tensor["M", "N", dtype],
        Y: ts.Tensor["M", "N", dtype],
        p: ts.f32,
        seed: ts.i64,
    ):
        for m, n in ts.tile.grid((M, 1), (N, 1024)):
            words = ts.tile.philox(seed, ts.tile.arange(256) + (m * N + n))
            for part in ts.tile.static_range(4):
                at = n + 256 * part
                uniform = ts.tile.cast(words[part] >> 8, ts.f32) * (1.0 / 16777216.0)
                x = ts.tile.cast(X[m, at : at + 256], ts.f32)
                Y[m, at : at + 256] = ts.tile.where(uniform >= p, x / (1.0 - p), 0.0) + R[m, at : at + 256]
        return Y

    return residual_dropout


@ts.kernel
def four(a: ts.Tensor["n", ts.f32], b: ts.Tensor["n", ts.f32], c: ts.Tensor["n", ts.f32], d: ts.Tensor["n", ts.f32]):
    """Add three arrays: a call of one element costs what the call costs."""
    for i in ts.tile.grid((n, 64)):
        d[i : i + 64] = a[i : i + 64] + b[i : i + 64] + c[i : i + 64]


@ts.kernel
def copy(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    """Copy an array: the rate that kernels of one read and one write are measured by."""
    for i in ts.tile.grid((n, 4096)):
        y[i : i + 4096] = x[i : i + 4096]
