"""Unpacking with a star."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    first, *rest = (1, 2, 3)
