"""The accumulator does not have the product's shape."""

import tessera as ts


def kernel(A: ts.Tensor["M", "K", ts.bf16], B: ts.Tensor["K", "N", ts.bf16], C: ts.Tensor["M", "N", ts.f32]):
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        acc = ts.tile.zeros((64, 32), ts.f32)
        C[m : m + 64, n : n + 64] = ts.tile.mma(A[m : m + 64, 0:32], B[0:32, n : n + 64], acc)
