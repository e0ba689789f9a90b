"""More indices than a tile has dimensions."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    v = x[0:8]
    y[0] = v[1, 2]
