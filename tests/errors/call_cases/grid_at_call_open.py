"""A launch with the grid in brackets, of a kernel that takes several dtypes."""

import numpy as np

import tessera as ts

T = ts.dtype_var("T", ts.f32, ts.f64)


@ts.kernel
def fill(y: ts.Tensor["n", T]):
    for m in ts.tile.grid((n, 64)):
        y[m : m + 64] = 1.0


def call():
    fill[(4,)](np.ones(200, np.float32))
