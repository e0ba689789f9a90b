"""linear_id in a kernel with a grid."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    for m in ts.tile.grid((n, 8)):
        i = ts.tile.linear_id()
        y[i] = x[i]
