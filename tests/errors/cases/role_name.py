"""A role that there is not."""

import tessera as ts


def kernel(x: ts.Tensor["n", "m", ts.f32], y: ts.Tensor["n", "m", ts.f32]):
    for i in ts.tile.grid((n, 16)):
        with ts.tile.role("loader"):
            y[i : i + 16, :16] = x[i : i + 16, :16]
