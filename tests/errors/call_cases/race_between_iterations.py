"""A loop overwrites a shared buffer that its last iteration may still be reading."""

import tessera as ts


@ts.kernel
def rows(x: ts.Tensor["m", "n", ts.f32], y: ts.Tensor["m", "n", ts.f32]):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((8, 32), ts.f32)
        for k in ts.tile.range(0, n, 32):
            b[...] = x[i : i + 8, k : k + 32]
            ts.tile.barrier()
            y[i : i + 8, k : k + 32] = b


def call():
    ts.compile(rows, target="sm_90a")
