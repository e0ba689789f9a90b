"""A tuning key that the kernel lacks."""

import tessera as ts


def call():
    @ts.kernel.autotune(space={"BN": [16, 32]}, key=("M",))
    def fill(y: ts.Tensor["n", ts.f32], BN: ts.constexpr):
        for m in ts.tile.grid((n, BN)):
            y[m : m + BN] = 1.0
