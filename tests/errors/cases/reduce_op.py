"""A reduction that does not exist."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    y[0] = ts.tile.reduce(x[0:8], 0, "mean")
