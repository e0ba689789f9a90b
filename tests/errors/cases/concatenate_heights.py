"""Tiles that differ beside the dimension along which they are put."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], s: ts.i32):
    for i in ts.tile.grid((n, 16)):
        rows = ts.tile.reshape(x[i : i + 16], (4, 4))
        more = ts.tile.concatenate((rows, rows[:3, :]), axis=1)
        y[i : i + 16] = more[:, 0:4].reshape(16)
