"""A pullback is called as the kernel is."""

import numpy as np

import tessera as ts


@ts.kernel
def double(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    for i in ts.tile.grid((n, 64)):
        y[i : i + 64] = x[i : i + 64] * 2.0


def call():
    ts.pullback(double)(np.ones(64, np.float32), np.zeros(64, np.float32))
