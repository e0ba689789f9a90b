"""A constexpr without a value."""

import tessera as ts


@ts.kernel
def fill(y: ts.Tensor["n", ts.f32], BN: ts.constexpr):
    for m in ts.tile.grid((n, BN)):
        y[m : m + BN] = 1.0


def call():
    ts.compile(fill, target="cpu")
