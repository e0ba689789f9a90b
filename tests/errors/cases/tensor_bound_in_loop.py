"""A tensor's name is bound to a tile in a loop."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    for i in ts.tile.grid((n, 64)):
        for k in ts.tile.range(8):
            y = y[i : i + 8] + x[i + k]
