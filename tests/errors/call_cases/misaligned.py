"""An address that is not a multiple of the element."""

import numpy as np

import tessera as ts


@ts.kernel
def saxpy(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], alpha: ts.f32):
    i = ts.tile.linear_id()
    if i < n:
        y[i] = alpha * x[i] + y[i]
    return y


def call():
    bytes_ = np.zeros(33, np.uint8)
    start = 1 if bytes_.ctypes.data % 4 == 0 else 0
    saxpy(bytes_[start : start + 32].view(np.float32), np.ones(8, np.float32), 2.0)
