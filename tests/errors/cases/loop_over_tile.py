"""A loop over a tile."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    for v in x[0:8]:
        y[0] = v
