"""A grid inside a loop."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    for k in ts.tile.range(4):
        for m in ts.tile.grid((n, 8)):
            y[m : m + 8] = x[m : m + 8]
