"""A cast to a dtype of NumPy."""

import numpy as np

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    y[0:8] = x[0:8].to(np.float16)
