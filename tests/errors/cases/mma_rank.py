"""A matrix product of a four-dimensional tile."""

import tessera as ts


def kernel(A: ts.Tensor["B", "H", "M", "K", ts.bf16], C: ts.Tensor["M", "N", ts.f32]):
    C[0:16, 0:16] = ts.tile.mma(A[0:2, 0:2, 0:16, 0:16], A[0, 0, 0:16, 0:16])
