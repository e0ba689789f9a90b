"""A slice with a run-time start and no end."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    for m in ts.tile.grid((n, 8)):
        y[m:] = x[m:]
