"""A barrier that there is not."""

import tessera as ts


def kernel(x: ts.Tensor["n", "m", ts.f32], y: ts.Tensor["n", "m", ts.f32]):
    for i in ts.tile.grid((n, 16)):
        full = ts.tile.mbarrier.alloc(2)
        ts.tile.mbarrier.arrive(full[2])
