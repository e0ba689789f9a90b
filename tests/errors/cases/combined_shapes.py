"""Tiles that are combined together have one shape."""

import tessera as ts


@ts.function
def larger(a, i, b, j):
    return ts.tile.maximum(a, b), ts.tile.minimum(i, j)


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    y[0] = ts.tile.reduce((x[0:8], ts.tile.arange(16)), 0, larger)[0]
