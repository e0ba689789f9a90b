"""An asynchronous copy to a tensor."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    ts.tile.cp_async(y[0:8], x[0:8])
