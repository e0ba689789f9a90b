"""A swizzle that does not exist."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    buffer = ts.tile.alloc_shared((32,), ts.f32, swizzle="128B")
