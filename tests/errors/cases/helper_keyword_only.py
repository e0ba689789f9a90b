"""By place what is taken by keyword alone."""

import tessera as ts


@ts.function
def scaled(x, *, factor=2.0):
    return x * factor


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    for i in ts.tile.grid((n, 16)):
        y[i : i + 16] = scaled(x[i : i + 16], 3.0)
