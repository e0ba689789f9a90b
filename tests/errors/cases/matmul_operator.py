"""The @ operator on vectors."""

import tessera as ts


def kernel(A: ts.Tensor["M", "K", ts.f32], C: ts.Tensor["M", "N", ts.f32]):
    C[0:16, 0:16] = A[0, 0:16] @ A[0:16, 0:16]
