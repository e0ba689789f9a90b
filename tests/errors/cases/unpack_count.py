"""More names than values."""

import tessera as ts


def kernel(A: ts.Tensor["M", "K", ts.f32], C: ts.Tensor["M", "N", ts.f32]):
    a, b, c = A.shape
