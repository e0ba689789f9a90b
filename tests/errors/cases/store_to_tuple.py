"""A store to an element of a list."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    sums = [ts.tile.zeros((8,)), ts.tile.zeros((8,))]
    for i in ts.tile.range(4):
        sums[1] = sums[1] + x[8 * i : 8 * i + 8]
    y[0:8] = sums[0] + sums[1]
