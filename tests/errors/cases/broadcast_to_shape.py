"""A tile does not broadcast to the shape."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    y[0:8] = ts.tile.broadcast_to(x[0:3], (8,))
