"""A slice of a tile without elements."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    v = x[0:8]
    y[0:8] = v[6:2]
