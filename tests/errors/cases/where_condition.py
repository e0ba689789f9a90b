"""`where` needs a bool condition."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    y[0:8] = ts.tile.where(x[0:8], 1.0, 2.0)
