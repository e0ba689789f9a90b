"""A product of 8-bit integers with and without sign."""

import tessera as ts


def kernel(x: ts.Tensor[16, 16, ts.u8], w: ts.Tensor[16, 16, ts.i8], y: ts.Tensor[16, 16, ts.i32]):
    y[:, :] = ts.tile.mma(x[:, :], w[:, :])
