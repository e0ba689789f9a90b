"""A number where a tile is needed."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    y[0] = ts.tile.sum(2.0)
