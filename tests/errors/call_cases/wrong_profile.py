"""An artefact is called in a block that names another numerics profile."""

import tempfile
from pathlib import Path

import numpy as np

import tessera as ts


@ts.kernel
def double(x: ts.Tensor["n", ts.f32]):
    i = ts.tile.linear_id()
    if i < n:
        x[i] = x[i] * 2.0


def call():
    artifact = ts.compile(double, target="cpu")
    with tempfile.TemporaryDirectory() as folder:
        artifact.save(Path(folder) / "double.tessera")
        loaded = ts.load(Path(folder) / "double.tessera")
    with ts.numerics.profile("strict"):
        loaded(np.ones(8, np.float32))
