"""A shared buffer is read by a function without a barrier after the store."""

import tessera as ts


@ts.function
def doubled(b):
    return b + b


@ts.kernel
def rows(x: ts.Tensor["m", 32, ts.f32], y: ts.Tensor["m", 32, ts.f32]):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((8, 32), ts.f32)
        b[...] = x[i : i + 8, :]
        y[i : i + 8, :] = doubled(b)


def call():
    ts.compile(rows, target="cpu")
