"""A helper whose returns differ in shape."""

import tessera as ts


@ts.function
def chosen(x, wide):
    if wide > 0:
        return x[0:16]
    return x[0:8]


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], wide: int):
    y[0:8] = chosen(x, wide)
