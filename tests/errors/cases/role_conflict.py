"""Two consumers that ask for different warps."""

import tessera as ts


def kernel(x: ts.Tensor["n", "m", ts.f32], y: ts.Tensor["n", "m", ts.f32]):
    for i in ts.tile.grid((n, 16)):
        with ts.tile.role("consumer", warps=4):
            y[i : i + 16, :16] = x[i : i + 16, :16]
        with ts.tile.role("consumer", warps=8):
            y[i : i + 16, 16:32] = x[i : i + 16, 16:32]
