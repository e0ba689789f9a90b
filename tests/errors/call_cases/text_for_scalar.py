"""A text for a number."""

import numpy as np

import tessera as ts


@ts.kernel
def fill(y: ts.Tensor["n", ts.f32], value: ts.f32, BN: ts.constexpr[int] = 16):
    for m in ts.tile.grid((n, BN)):
        y[m : m + BN] = value
    return y


def call():
    fill(np.ones(8, np.float32), "2")
