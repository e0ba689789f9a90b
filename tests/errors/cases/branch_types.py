"""Two branches give a name different types."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], flag: int):
    if flag > 0:
        v = x[0:8]
    else:
        v = x[0:16]
    y[0:8] = v
