"""Bytes of floats."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.u32]):
    y[0:8] = ts.tile.byte_perm(x[0:8], 0, 0x0123)
