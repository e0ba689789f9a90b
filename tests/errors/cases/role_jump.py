"""A jump out of a role."""

import tessera as ts


def kernel(x: ts.Tensor["n", "m", ts.f32], y: ts.Tensor["n", "m", ts.f32]):
    for i in ts.tile.grid((n, 16)):
        for k in ts.tile.range(0, m, 16):
            with ts.tile.role("consumer"):
                if k > 64:
                    break
                y[i : i + 16, k : k + 16] = x[i : i + 16, k : k + 16]
