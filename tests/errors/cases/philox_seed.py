"""A seed that is a float."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    i = ts.tile.linear_id()
    y[i] = ts.tile.rand(0.5, i)
