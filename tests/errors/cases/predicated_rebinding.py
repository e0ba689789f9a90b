"""An `if` on a tile rebinds a name to another dtype."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    i = ts.tile.linear_id()
    v = x[i]
    if i < n:
        v = v.to(ts.bf16)
    y[i] = v
