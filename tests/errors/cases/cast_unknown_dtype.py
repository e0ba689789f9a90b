"""A dtype's name is misspelt."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    y[0:8] = ts.tile.cast(x[0:8], "f33")
