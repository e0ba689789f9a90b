"""A mistake in a helper shows both places."""

import tessera as ts


@ts.function
def scale(v):
    return v * ts.tile.arange(4)


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    y[0:8] = scale(x[0:8])
