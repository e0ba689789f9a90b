"""A shift that is no integer."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    y[0:8] = x[0:8].roll(0.5, 0)
