"""An atomic bit operation on floats."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    ts.tile.atomic_or(y[0:8], 1)
