"""A result array that cannot be written."""

import numpy as np

import tessera as ts


@ts.kernel
def saxpy(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], alpha: ts.f32):
    i = ts.tile.linear_id()
    if i < n:
        y[i] = alpha * x[i] + y[i]
    return y


def call():
    y = np.ones(8, np.float32)
    y.flags.writeable = False
    saxpy(np.ones(8, np.float32), y, 2.0)
