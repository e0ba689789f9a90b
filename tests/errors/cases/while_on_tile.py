"""A while on a tile."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    v = x[0:8]
    while v > 1:
        v = v / 2
    y[0:8] = v
