"""A plain Python function is called."""

import tessera as ts


def helper(v):
    return v + 1


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    y[0:8] = helper(x[0:8])
