"""A wait for barriers at which nothing arrives."""

import tessera as ts


def kernel(x: ts.Tensor["n", "m", ts.f32], y: ts.Tensor["n", "m", ts.f32]):
    for i in ts.tile.grid((n, 16)):
        full, empty = ts.tile.mbarrier.alloc(2), ts.tile.mbarrier.alloc(2)
        buffer = ts.tile.alloc_shared((16, 32), ts.f32)
        for k in ts.tile.range(0, m, 32):
            ts.tile.mbarrier.wait(empty[k % 2])
            ts.tile.async_copy_2d(buffer, x[i : i + 16, k : k + 32])
            ts.tile.mbarrier.arrive(full[k % 2])
            ts.tile.mbarrier.wait(full[k % 2])
            y[i : i + 16, k : k + 32] = buffer
            ts.tile.barrier()
