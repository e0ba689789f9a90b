"""A name bound only in a loop is used after it."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    for k in ts.tile.range(0, n, 8):
        last = x[k : k + 8]
    y[0:8] = last
