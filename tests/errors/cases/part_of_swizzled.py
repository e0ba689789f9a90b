"""A part of a buffer whose columns are permuted."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    buffer = ts.tile.alloc_shared((8, 32), ts.f32, swizzle="xor")
    y[0:32] = buffer[0:8, 0]
