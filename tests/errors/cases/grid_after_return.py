"""A grid that depends on a condition."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], mode: int):
    if mode == 0:
        return
    for i in ts.tile.grid((n, 8)):
        y[i : i + 8] = x[i : i + 8]
