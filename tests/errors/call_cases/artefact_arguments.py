"""An artefact is called with too few arguments."""

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
    artifact = ts.compile(saxpy, target="cpu")
    with tempfile.TemporaryDirectory() as folder:
        artifact.save(Path(folder) / "saxpy.tessera")
        loaded = ts.load(Path(folder) / "saxpy.tessera")
    loaded(np.ones(8, np.float32), np.ones(8, np.float32))
