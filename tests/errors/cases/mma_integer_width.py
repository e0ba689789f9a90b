"""Matrix products of 16-bit integers do not exist."""

import tessera as ts


def kernel(A: ts.Tensor[16, 16, ts.i16], C: ts.Tensor[16, 16, ts.i32]):
    C[:, :] = ts.tile.mma(A[:, :], A[:, :])
