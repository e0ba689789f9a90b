"""A constexpr that the kernel lacks."""

import tessera as ts


@ts.kernel
def fill(y: ts.Tensor["n", ts.f32], value: ts.f32, BN: ts.constexpr[int] = 16):
    for m in ts.tile.grid((n, BN)):
        y[m : m + BN] = value
    return y


def call():
    ts.compile(fill, target="cpu", BM=32)
