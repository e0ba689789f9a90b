"""A cotangent has another shape than what the kernel stores to."""

import numpy as np

import tessera as ts


@ts.kernel
def scale(x: ts.Tensor["n", ts.f32], k: ts.Tensor["n", ts.i32], y: ts.Tensor["n", ts.f32], z: ts.Tensor["n", ts.f32]):
    for i in ts.tile.grid((n, 64)):
        y[i : i + 64] = x[i : i + 64] * 2.0
        z[i : i + 64] = x[i : i + 64] * k[i : i + 64]


def call():
    x, k = np.ones(64, np.float32), np.ones(64, np.int32)
    y, z = np.zeros(64, np.float32), np.zeros(64, np.float32)
    ts.pullback(scale)(x, k, y, z, cotangents={"y": y[:32].copy()})
