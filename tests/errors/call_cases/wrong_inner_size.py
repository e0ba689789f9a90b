"""The inner sizes of a product disagree."""

import numpy as np

import tessera as ts


@ts.kernel
def gemm(A: ts.Tensor["M", "K", ts.f32], B: ts.Tensor["K", "N", ts.f32], C: ts.Tensor["M", "N", ts.f32]):
    for m, n in ts.tile.grid((M, 16), (N, 16)):
        acc = ts.tile.zeros((16, 16), ts.f32)
        for k in ts.tile.range(0, K, 16):
            acc = ts.tile.mma(A[m : m + 16, k : k + 16], B[k : k + 16, n : n + 16], acc)
        C[m : m + 16, n : n + 16] = acc
    return C


def call():
    gemm(np.ones((4, 5), np.float32), np.ones((6, 4), np.float32), np.ones((4, 4), np.float32))
