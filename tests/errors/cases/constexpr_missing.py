"""A constexpr without a value."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], BM: ts.constexpr):
    y[0:8] = x[0:8]
