"""A function without a derivative is in a helper of a kernel that is differentiated."""

import numpy as np

import tessera as ts


@ts.function
def logarithm_of_gamma(t):
    return ts.tile.lgamma(t) + 1.0


@ts.kernel
def gammas(x: ts.Tensor["n", ts.f32], w: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    for i in ts.tile.grid((n, 64)):
        y[i : i + 64] = logarithm_of_gamma(x[i : i + 64]) * w[i : i + 64]


def call():
    x, y = np.ones(64, np.float32), np.zeros(64, np.float32)
    ts.pullback(gammas)(x, x.copy(), y, cotangents=y)
