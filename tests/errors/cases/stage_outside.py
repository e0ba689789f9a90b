"""A stage that does not exist."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    buffer = ts.tile.alloc_shared((2, 32), ts.f32)
    y[0:32] = buffer[2] + 0.0
