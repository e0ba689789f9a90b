"""A number that its parameter's dtype cannot hold."""

import numpy as np

import tessera as ts


@ts.kernel
def first(y: ts.Tensor["n", ts.i32], value: ts.i8):
    y[0] = value
    return y


def call():
    first(np.ones(8, np.int32), 300)
