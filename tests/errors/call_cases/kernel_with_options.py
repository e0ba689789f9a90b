"""Options of a launch at the decorator, as in other languages."""

import tessera as ts


def call():
    @ts.kernel(num_warps=4)
    def fill(y: ts.Tensor["n", ts.f32]):
        for m in ts.tile.grid((n, 64)):
            y[m : m + 64] = 1.0
