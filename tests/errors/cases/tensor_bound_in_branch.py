"""A tensor's name is bound to a tile, as if that stored to it."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    i = ts.tile.linear_id()
    if i < n:
        y = x[i]
    return y
