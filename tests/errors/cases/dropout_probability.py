"""A probability outside [0, 1)."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    i = ts.tile.linear_id()
    y[i] = ts.tile.dropout(x[i], 1.5, 1, i)
