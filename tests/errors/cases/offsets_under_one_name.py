"""The offsets of a grid of two dimensions under one name."""

import tessera as ts


def kernel(x: ts.Tensor["m", "n", ts.f32], y: ts.Tensor["m", "n", ts.f32]):
    for i in ts.tile.grid((m, 8), (n, 8)):
        y[i : i + 8, 0:8] = x[i : i + 8, 0:8]
