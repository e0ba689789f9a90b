"""A break on a tile."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    for k in ts.tile.range(0, n, 8):
        if x[k : k + 8] > 0:
            break
