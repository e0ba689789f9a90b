"""A loop that never advances."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    for k in ts.tile.range(0, n, 0):
        y[k] = x[k]
