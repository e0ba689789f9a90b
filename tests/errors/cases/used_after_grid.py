"""A value of one program is used after the grid."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    for m in ts.tile.grid((n, 8)):
        total = ts.tile.sum(x[m : m + 8])
    for m in ts.tile.grid((n, 8)):
        y[m : m + 8] = total
