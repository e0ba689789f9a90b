"""Python's range as a loop."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    for k in range(0, n, 8):
        y[k : k + 8] = x[k : k + 8]
