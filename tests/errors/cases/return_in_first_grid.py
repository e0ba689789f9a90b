"""A return inside a grid that something follows."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    for i in ts.tile.grid((n, 8)):
        if i > 8:
            return
        y[i : i + 8] = x[i : i + 8]
    for i in ts.tile.grid((n, 8)):
        y[i : i + 8] += 1.0
