"""A mistake inside the kernel shows the kernel's line, not the call."""

import numpy as np

import tessera as ts


@ts.kernel
def fill(y: ts.Tensor["n", ts.f32]):
    y[0:8] = ts.tile.zeros((4,)) + ts.tile.zeros((8,))


def call():
    fill(np.ones(8, np.float32))
