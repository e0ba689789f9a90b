"""A parameter type that kernels do not have."""

import tessera as ts


def kernel(x: list, y: ts.Tensor[8, ts.f32]):
    y[0:8] = 1.0
