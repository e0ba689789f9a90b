"""An import inside a kernel."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    import math

    y[0:8] = x[0:8]
