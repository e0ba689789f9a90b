"""A field of a structured array, whose elements are not aligned."""

import numpy as np

import tessera as ts


@ts.kernel
def saxpy(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], alpha: ts.f32):
    i = ts.tile.linear_id()
    if i < n:
        y[i] = alpha * x[i] + y[i]
    return y


def call():
    records = np.zeros(4, [("tag", np.uint8), ("value", np.float32)])
    saxpy(records["value"], np.ones(4, np.float32), 2.0)
