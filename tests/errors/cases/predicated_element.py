"""Each element of a tile that fulfils a condition adds to one element."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    if x[0:8] > 0:
        ts.tile.atomic_add(y[0], 1.0)
