"""A slice between an index tile and an integer."""

import tessera as ts


def kernel(A: ts.Tensor["L", "M", "K", ts.f32], C: ts.Tensor["M", "N", ts.f32]):
    C[0:8, 0:8] = A[ts.tile.arange(8), 0:8, 0]
