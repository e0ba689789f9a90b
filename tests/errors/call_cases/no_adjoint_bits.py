"""Numbers are computed from the bits of others."""

import numpy as np

import tessera as ts


@ts.kernel
def flipped(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    for i in ts.tile.grid((n, 64)):
        bits = ts.tile.bitcast(x[i : i + 64], ts.i32)
        y[i : i + 64] = ts.tile.bitcast(bits ^ 1, ts.f32)


def call():
    x, y = np.ones(64, np.float32), np.zeros(64, np.float32)
    ts.pullback(flipped)(x, y, cotangents=y)
