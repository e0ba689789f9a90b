"""A carried tile changes its dtype."""

import tessera as ts


def kernel(A: ts.Tensor["M", "K", ts.f32], C: ts.Tensor["M", "N", ts.f32]):
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        acc = ts.tile.zeros((64, 64), ts.bf16)
        for k in ts.tile.range(0, K, 64):
            acc = acc + A[m : m + 64, k : k + 64]
        C[m : m + 64, n : n + 64] = acc
