"""A two-dimensional copy to a vector."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    buffer = ts.tile.alloc_shared((32,), ts.f32)
    ts.tile.async_copy_2d(buffer, x[0:32])
