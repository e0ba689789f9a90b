"""A name that one path that goes on does not bind."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    for k in ts.tile.range(8):
        if x[k] > 0:
            if x[k] > 1:
                continue
            v = x[k]
        y[k] = v
