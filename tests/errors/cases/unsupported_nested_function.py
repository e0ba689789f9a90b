"""A function inside a kernel."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    def inner(v):
        return v + 1

    y[0:8] = inner(x[0:8])
