"""A kernel calls a kernel."""

import numpy as np

import tessera as ts


@ts.kernel
def fill(y: ts.Tensor["n", ts.f32], value: ts.f32, BN: ts.constexpr[int] = 16):
    for m in ts.tile.grid((n, BN)):
        y[m : m + BN] = value
    return y


@ts.kernel
def twice(y: ts.Tensor["n", ts.f32]):
    fill(y, 1.0)
    fill(y, 2.0)


def call():
    twice(np.ones(8, np.float32))
