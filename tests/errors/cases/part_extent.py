"""A slice of a tile whose length is not known."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], i: int):
    v = x[0:8]
    y[0:8] = v[i:]
