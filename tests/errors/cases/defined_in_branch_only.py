"""A name bound in one branch is used after it."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], flag: int):
    if flag > 0:
        value = 1.0
    y[0] = value
