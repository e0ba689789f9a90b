"""A tile of one dimension taken apart."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    a, b = ts.tile.unstack(x[0:2])
    y[0:8] = a
