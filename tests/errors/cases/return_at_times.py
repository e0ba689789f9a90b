"""A helper that does not always return a value."""

import tessera as ts


@ts.function
def first(x):
    for k in ts.tile.range(8):
        if x[k] > 0:
            return x[k]


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    y[0] = first(x)
