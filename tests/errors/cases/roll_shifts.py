"""Two shifts for one dimension."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    y[0:8] = ts.tile.roll(x[0:8], (1, 2), 0)
