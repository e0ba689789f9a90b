"""A kernel that stages by hand is differentiated."""

import numpy as np

import tessera as ts


@ts.kernel
def staged(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    for i in ts.tile.grid((n, 64)):
        buffer = ts.tile.alloc_shared((64,), ts.f32)
        buffer[...] = x[i : i + 64]
        ts.tile.barrier()
        y[i : i + 64] = buffer


def call():
    x, y = np.ones(64, np.float32), np.zeros(64, np.float32)
    ts.pullback(staged)(x, y, cotangents=y)
