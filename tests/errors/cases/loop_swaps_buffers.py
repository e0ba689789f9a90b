"""Shared buffers are exchanged in a loop."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    a = ts.tile.alloc_shared((32,), ts.f32)
    b = ts.tile.alloc_shared((32,), ts.f32)
    for k in ts.tile.range(4):
        a, b = b, a
    y[0:32] = a + 0.0
