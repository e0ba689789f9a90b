"""Arrays on the host for code of a GPU."""

import tempfile
from pathlib import Path

import numpy as np

import tessera as ts


@ts.kernel
def saxpy(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], alpha: ts.f32):
    i = ts.tile.linear_id()
    if i < n:
        y[i] = alpha * x[i] + y[i]
    return y


def call():
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "saxpy.tessera"
        ts.compile(saxpy, target="sm_80").save(path)
        loaded = ts.load(path)
    loaded(np.ones(8, np.float32), np.ones(8, np.float32), 2.0)
