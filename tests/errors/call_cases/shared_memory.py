"""Shared buffers that the target cannot hold."""

import tessera as ts


@ts.kernel
def staged(x: ts.Tensor["M", ts.f32]):
    for m in ts.tile.grid((M, 16384)):
        a = ts.tile.alloc_shared((16384,), ts.f32)
        b = ts.tile.alloc_shared((64, 128), ts.bf16)
        ts.tile.cp_async(a, x[m : m + 16384])
        b[...] = ts.tile.zeros((64, 128))
        ts.tile.barrier()
        x[m : m + 16384] = a + ts.tile.sum(ts.tile.load(b))


def call():
    ts.compile(staged, target="sm_75")
