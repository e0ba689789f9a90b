"""A number is added to what a helper without return gives."""

import tessera as ts


@ts.function
def doubled(x):
    x * 2


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    y[0:8] = doubled(x[0:8]) + 1
