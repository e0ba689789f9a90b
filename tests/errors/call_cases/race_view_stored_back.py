"""A transposed view of a shared buffer is stored to the buffer itself: it is read there, not where it was named."""

import tessera as ts


@ts.kernel
def turned(x: ts.Tensor["m", "n", ts.f32]):
    for i, j in ts.tile.grid((m, 8), (n, 8)):
        b = ts.tile.alloc_shared((8, 8), ts.f32)
        b[...] = x[i : i + 8, j : j + 8]
        ts.tile.barrier()
        v = b.T
        ts.tile.barrier()
        b[...] = v
        ts.tile.barrier()
        x[i : i + 8, j : j + 8] = b


def call():
    ts.compile(turned, target="cpu")
