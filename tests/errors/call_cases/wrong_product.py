"""A dimension that must be a product of others."""

import numpy as np

import tessera as ts


@ts.kernel
def split(x: ts.Tensor["B*H", ts.f32], y: ts.Tensor["B", "H", ts.f32]):
    for b, h in ts.tile.grid((B, 1), (H, 1)):
        y[b, h] = x[b * H + h]
    return y


def call():
    split(np.ones(7, np.float32), np.ones((2, 3), np.float32))
