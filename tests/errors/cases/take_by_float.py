"""Elements picked by floats."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    y[0:8] = ts.tile.take(x[0:8], x[0:8], 0)
