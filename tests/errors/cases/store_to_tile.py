"""A tile is changed in place."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    v = x[0:8]
    v[0] = 1.0
    y[0:8] = v
