"""A grid of 2**80 programs."""

import numpy as np

import tessera as ts


@ts.kernel
def kernel(y: ts.Tensor["n", ts.f32], k: int):
    for _, _ in ts.tile.grid((k, 1), (k, 1)):
        y[0:1] = 1.0


def call():
    kernel(np.zeros(4, np.float32), 2**40)
