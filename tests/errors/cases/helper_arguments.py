"""A helper is called with an argument too many."""

import tessera as ts


@ts.function
def double(v):
    return v * 2


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    y[0:8] = double(x[0:8], 2)
