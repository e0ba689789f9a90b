"""A loop variable has the name of a dimension."""

import tessera as ts


def kernel(x: ts.Tensor["i", ts.f32], y: ts.Tensor["i", ts.f32]):
    for i in ts.tile.grid((i, 8)):
        y[i : i + 8] = x[i : i + 8]
