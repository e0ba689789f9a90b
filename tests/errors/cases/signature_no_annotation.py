"""A parameter without annotation."""

import tessera as ts


def kernel(x, y: ts.Tensor[8, ts.f32]):
    y[0:8] = 1.0
