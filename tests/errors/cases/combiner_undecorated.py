"""A combiner is a @ts.function."""

import tessera as ts


def larger(a, b):
    return ts.tile.maximum(a, b)


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    y[0] = ts.tile.reduce(x[0:8], 0, larger)
