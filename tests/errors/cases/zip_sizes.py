"""Tuples of two sizes are zipped, where that is asked to be an error."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    tile = x[0:8]
    for factor, part in zip((1.0, 2.0, 3.0), (tile, tile + 1.0), strict=True):
        y[0:8] = factor * part
