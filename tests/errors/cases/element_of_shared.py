"""An element of a shared buffer, read without an atomic."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    buffer = ts.tile.alloc_shared((32,), ts.f32)
    y[0:32] = buffer[1] + 0.0
