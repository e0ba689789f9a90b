"""An asynchronous copy of a tile."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    buffer = ts.tile.alloc_shared((8,), ts.f32)
    ts.tile.cp_async(buffer, x[0:8] * 2)
