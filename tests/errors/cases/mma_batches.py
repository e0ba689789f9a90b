"""Batches of two sizes."""

import tessera as ts


def kernel(A: ts.Tensor["B", "M", "K", ts.f32], C: ts.Tensor["B", "M", "N", ts.f32]):
    C[0:4, 0:16, 0:16] = A[0:4, 0:16, 0:16] @ A[0:2, 0:16, 0:16]
