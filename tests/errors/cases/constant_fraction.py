"""A fraction does not fit an integer dtype."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.i32], y: ts.Tensor["n", ts.f32]):
    y[0:8] = ts.tile.full((8,), 1.5, ts.i32)
