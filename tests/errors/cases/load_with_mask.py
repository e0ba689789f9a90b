"""A masked load as Triton writes it."""

import tessera as ts


def kernel(X: ts.Tensor["n", ts.f32], Y: ts.Tensor["n", ts.f32]):
    for i in ts.tile.grid((n, 64)):
        at = i + ts.tile.arange(64)
        Y[at] = ts.tile.load(X[at], mask=at < n, other=1.0)
