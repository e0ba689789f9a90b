"""A reshape changes the number of elements."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    y[0:8] = ts.tile.reshape(x[0:8], (3, 3))
