"""A size that the annotation fixes."""

import numpy as np

import tessera as ts


@ts.kernel
def first(y: ts.Tensor[16, ts.f32]):
    y[0] = 1.0
    return y


def call():
    first(np.ones(8, np.float32))
