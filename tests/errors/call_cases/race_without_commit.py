"""A copy belongs to no group, so that no wait covers it."""

import tessera as ts


@ts.kernel
def rows(x: ts.Tensor["m", 32, ts.f32], y: ts.Tensor["m", 32, ts.f32]):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((8, 32), ts.f32)
        ts.tile.cp_async(b, x[i : i + 8, :])
        ts.tile.wait_group(0)
        y[i : i + 8, :] = b


def call():
    ts.compile(rows, target="cpu")
