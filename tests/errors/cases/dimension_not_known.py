"""A whole row of unknown length."""

import tessera as ts


def kernel(A: ts.Tensor["M", "unknown", ts.f32], y: ts.Tensor["n", ts.f32]):
    y[0] = ts.tile.sum(A[0, :])
