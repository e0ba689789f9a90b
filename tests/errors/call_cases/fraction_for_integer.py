"""A fraction for an integer."""

import numpy as np

import tessera as ts


@ts.kernel
def first(y: ts.Tensor["n", ts.i32], value: int):
    y[0] = value
    return y


def call():
    first(np.ones(8, np.int32), 1.5)
