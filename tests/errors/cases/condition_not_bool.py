"""An `if` on a tile of floats."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    if x[0:8]:
        y[0:8] = 1.0
