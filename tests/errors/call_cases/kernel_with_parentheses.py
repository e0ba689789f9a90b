"""A decorator called without a function, as of frameworks whose decorators take options."""

import tessera as ts


def call():
    @ts.kernel()
    def fill(y: ts.Tensor["n", ts.f32]):
        for m in ts.tile.grid((n, 64)):
            y[m : m + 64] = 1.0
