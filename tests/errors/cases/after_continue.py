"""A statement after continue."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    for k in ts.tile.range(0, n, 8):
        if x[k] > 0:
            continue
            y[k] = 1.0
