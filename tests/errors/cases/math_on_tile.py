"""A function of `math` on a tile."""

import math

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    y[0:8] = math.sqrt(x[0:8])
