"""A slot where none is taken."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], s: ts.i32):
    for i in ts.tile.grid((n, 16)):
        ts.tile.pipeline.begin(s)
