"""A range counts down."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    y[0:4] = ts.tile.arange(4, 0)
