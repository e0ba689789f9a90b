"""A step that is known at run time only."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], step: int):
    y[0:8] = x[0:16:step]
