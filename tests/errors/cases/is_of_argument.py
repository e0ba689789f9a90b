"""A test of an argument by `is`, which only compile-time values have."""

import tessera as ts


def kernel(Y: ts.Tensor["n", ts.f32], flag: ts.bool_):
    for i in ts.tile.grid((n, 64)):
        if flag is True:
            Y[i : i + 64] = 1.0
