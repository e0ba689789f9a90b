"""A while that cannot end."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    while True:
        y[0] = x[0]
