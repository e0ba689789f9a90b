"""A grid whose extent is read from a tensor."""

import numpy as np

import tessera as ts


@ts.kernel
def rows(count: ts.Tensor[1, ts.i32], y: ts.Tensor["n", ts.f32]):
    for m in ts.tile.grid((count[0], 4)):
        y[m : m + 4] = 1.0


def call():
    rows(np.ones(1, np.int32), np.ones(8, np.float32))
