"""A tile is enumerated."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    for i, element in enumerate(x[0:8]):
        y[i] = element
