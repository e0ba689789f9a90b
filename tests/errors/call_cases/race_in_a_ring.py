"""A stage is read although its copy may still be under way."""

import tessera as ts


@ts.kernel
def ring(x: ts.Tensor["m", "n", ts.f32], y: ts.Tensor["m", "n", ts.f32]):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((2, 8, 32), ts.f32)
        ts.tile.cp_async(b[0], x[i : i + 8, 0:32])
        ts.tile.commit_group()
        for k in ts.tile.range(0, n // 32):
            ts.tile.cp_async(b[(k + 1) % 2], x[i : i + 8, k * 32 + 32 : k * 32 + 64])
            ts.tile.commit_group()
            ts.tile.wait_group(2)
            ts.tile.barrier()
            y[i : i + 8, k * 32 : k * 32 + 32] = ts.tile.load(b[k % 2])
            ts.tile.barrier()


def call():
    ts.compile(ring, target="cpu")
