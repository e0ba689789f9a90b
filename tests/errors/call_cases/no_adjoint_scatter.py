"""Elements are stored where an index tile says, which may name one twice."""

import numpy as np

import tessera as ts


@ts.kernel
def permuted(x: ts.Tensor["n", ts.f32], places: ts.Tensor["n", ts.i32], y: ts.Tensor["n", ts.f32]):
    for i in ts.tile.grid((n, 64)):
        y[places[i : i + 64]] = x[i : i + 64]


def call():
    x, y = np.ones(64, np.float32), np.zeros(64, np.float32)
    ts.pullback(permuted)(x, np.arange(64, dtype=np.int32), y, cotangents=y)
