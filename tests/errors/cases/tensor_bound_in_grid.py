"""A tensor's name is bound to a tile in a grid, and returned."""

import tessera as ts


def kernel(x: ts.Tensor["m", "n", ts.f32], y: ts.Tensor["m", "n", ts.f32]):
    for i, j in ts.tile.grid((m, 8), (n, 8)):
        y = x[i : i + 8, j : j + 8]
    return y
