"""A tensor's .T."""

import tessera as ts


def kernel(A: ts.Tensor["M", "K", ts.f32], C: ts.Tensor["M", "N", ts.f32]):
    C[0:8, 0:8] = A.T[0:8, 0:8]
