"""A constant of the module is changed."""

import tessera as ts

SCALE = 2.0


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    for i in ts.tile.grid((n, 8)):
        SCALE = SCALE + 1.0
        y[i : i + 8] = x[i : i + 8] * SCALE
