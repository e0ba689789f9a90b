"""A loop's variable, which no iteration may have set."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    for k in ts.tile.range(8):
        if x[k] > 0:
            break
    y[0] = k
