"""A fixed size that 64 bits do not hold."""

import tessera as ts


def kernel(X: ts.Tensor[2**64, ts.f32], Y: ts.Tensor["n", ts.f32]):
    for i in ts.tile.grid((n, 64)):
        Y[i : i + 64] = X[i : i + 64]
