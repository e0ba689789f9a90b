"""Nested compile-time loops that repeat their body 16 million times."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32]):
    for _ in ts.tile.static_range(4096):
        for _ in ts.tile.static_range(4096):
            pass
    x[0] = 1.0
