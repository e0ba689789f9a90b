"""A tunable without values."""

import tessera as ts


def call():
    @ts.kernel.autotune(space={"BN": 16})
    def fill(y: ts.Tensor["n", ts.f32], BN: ts.constexpr):
        for m in ts.tile.grid((n, BN)):
            y[m : m + BN] = 1.0
