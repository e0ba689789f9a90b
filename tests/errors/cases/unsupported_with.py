"""A with statement."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    with open("x") as f:
        y[0:8] = x[0:8]
