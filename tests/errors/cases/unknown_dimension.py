"""A dimension symbol that no argument has."""

import tessera as ts

Z = ts.dims("Z")


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    y[0] = Z
