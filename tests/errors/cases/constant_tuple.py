"""A tuple that doubles."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32]):
    t = (1, 2)
    for _ in ts.tile.static_range(60):
        t = (t, t)
    x[0] = 1.0
