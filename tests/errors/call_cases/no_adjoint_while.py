"""A loop that ends when its value is small is differentiated."""

import numpy as np

import tessera as ts


@ts.kernel
def halved(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    for i in ts.tile.grid((n, 1)):
        value = x[i]
        while value > 1.0:
            value = value * 0.5
        y[i] = value


def call():
    x, y = np.ones(64, np.float32), np.zeros(64, np.float32)
    ts.pullback(halved)(x, y, cotangents=y)
