"""An atomic on a loaded tile."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    v = y[0:8]
    ts.tile.atomic_add(v, 1.0)
