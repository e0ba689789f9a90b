"""A misspelt name."""

import tessera as ts


def kernel(A: ts.Tensor["M", "K", ts.f32], C: ts.Tensor["M", "N", ts.f32]):
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        acc = A[m : m + 64, 0:64]
        C[m : m + 64, n : n + 64] = ac * 2
