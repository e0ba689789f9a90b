"""A negative step from a lower to an upper bound."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    y[0:8] = x[0:16:-2]
