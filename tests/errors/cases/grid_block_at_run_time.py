"""A block size known only at the call."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], block: int):
    for m in ts.tile.grid((n, block)):
        y[m] = x[m]
