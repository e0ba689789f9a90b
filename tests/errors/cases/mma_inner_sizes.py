"""The inner sizes of a matrix product differ."""

import tessera as ts


def kernel(A: ts.Tensor["M", "K", ts.bf16], B: ts.Tensor["K", "N", ts.bf16], C: ts.Tensor["M", "N", ts.f32]):
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        a = A[m : m + 64, 0:32]
        b = B[0:16, n : n + 64]
        C[m : m + 64, n : n + 64] = ts.tile.mma(a, b)
