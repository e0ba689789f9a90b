"""A list that is to grow."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    parts = []
    for i in ts.tile.static_range(3):
        parts.append(x[8 * i : 8 * i + 8])
    y[0:8] = parts[0] + parts[1] + parts[2]
