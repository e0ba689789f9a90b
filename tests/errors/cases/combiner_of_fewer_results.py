"""A combiner gives an element of each tile."""

import tessera as ts


@ts.function
def total(a, i, b, j):
    return a + b


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    y[0] = ts.tile.reduce((x[0:8], ts.tile.arange(8)), 0, total)[0]
