"""A reduction that there is not."""

import tessera as ts


def kernel(x: ts.Tensor["n", "m", ts.f32], y: ts.Tensor["n", "m", ts.f32]):
    for i in ts.tile.grid((n, 16)):
        y[i : i + 16, 0] = x[i : i + 16, 0] + ts.tile.group.reduce(x[i : i + 16, 0], "median")
