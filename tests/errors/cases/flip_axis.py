"""A dimension that is reversed twice."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    y[0:8] = ts.tile.flip(x[0:8], (0, -1))
