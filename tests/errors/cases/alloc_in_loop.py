"""A shared buffer inside a loop."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    for k in ts.tile.range(4):
        buffer = ts.tile.alloc_shared((32,), ts.f32)
