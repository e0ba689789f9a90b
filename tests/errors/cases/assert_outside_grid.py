"""An assertion that no program makes."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], s: ts.i32):
    assert s > 0, "no step"
    for i in ts.tile.grid((n, 16)):
        y[i : i + 16] = x[i : i + 16]
