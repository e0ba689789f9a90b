"""A slice without a static extent."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], count: int):
    y[0:count] = x[0:count]
