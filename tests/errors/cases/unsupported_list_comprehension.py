"""A list comprehension."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    y[0:8] = sum([x[i : i + 8] for i in range(4)])
