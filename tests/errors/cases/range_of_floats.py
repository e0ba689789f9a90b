"""A loop bound that is a float."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    for k in ts.tile.range(0, 1.5):
        y[k] = x[k]
