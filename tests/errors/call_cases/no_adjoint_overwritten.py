"""A kernel that squares in place is differentiated: the numbers that it squared are gone."""

import numpy as np

import tessera as ts


@ts.kernel
def squared(x: ts.Tensor["n", ts.f32]):
    for i in ts.tile.grid((n, 64)):
        x[i : i + 64] = x[i : i + 64] * x[i : i + 64]


def call():
    x = np.ones(64, np.float32)
    ts.pullback(squared)(x, cotangents=x.copy())
