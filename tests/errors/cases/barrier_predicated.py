"""A barrier under a condition on a tile."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    buffer = ts.tile.alloc_shared((8,), ts.f32)
    if x[0:8] > 0:
        buffer[...] = 1.0
        ts.tile.barrier()
