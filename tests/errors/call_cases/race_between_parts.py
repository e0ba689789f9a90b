"""A part of a shared buffer is read where another part was written with no barrier between."""

import tessera as ts


@ts.kernel
def rows(x: ts.Tensor["m", "n", ts.f32], y: ts.Tensor["m", "n", ts.f32]):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((16, 32), ts.f32)
        b[0:8, :] = x[i : i + 8, 0:32]
        b[8:16, :] = x[i : i + 8, 32:64]
        y[i : i + 8, 0:32] = b[4:12, :]


def call():
    ts.compile(rows, target="sm_90a")
