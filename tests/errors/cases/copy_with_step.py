"""An asynchronous copy of a slice with a step."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32]):
    buffer = ts.tile.alloc_shared((16,), ts.f32)
    ts.tile.cp_async(buffer, x[0:32:2])
