"""A kernel under the decorator of functions of whole arrays."""

import tessera as ts


def call():
    @ts.jit
    def fill(y: ts.Tensor["n", ts.f32]):
        for m in ts.tile.grid((n, 64)):
            y[m : m + 64] = 1.0
