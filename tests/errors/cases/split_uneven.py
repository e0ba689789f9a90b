"""Parts of different sizes."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    a, b, c = ts.tile.split(x[0:8], 3)
    y[0:8] = a
