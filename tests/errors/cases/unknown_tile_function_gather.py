"""A function that other languages have."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32]):
    x[0:8] = ts.tile.gather(x[0:8], 0)
