"""A tensor is a condition, as `if bias:` in Python."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], bias: ts.Tensor["n", ts.f32]):
    if bias:
        x[0:8] = bias[0:8]
