"""A causal mask of a vector."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    y[0:8] = ts.tile.causal_mask(x[0:8], 0, 0)
