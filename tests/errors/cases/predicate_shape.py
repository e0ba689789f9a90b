"""The condition of an `if` has another shape than what is stored."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    if x[0:8] > 0:
        y[0:16] = 1.0
