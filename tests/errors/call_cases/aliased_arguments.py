"""An artefact is given one array where it was compiled for two."""

import tempfile
from pathlib import Path

import numpy as np

import tessera as ts


@ts.kernel
def scale(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    for i in ts.tile.grid((n, 64)):
        y[i : i + 64] = x[i : i + 64] * 2.0


def call():
    artifact = ts.compile(scale, target="cpu")
    with tempfile.TemporaryDirectory() as folder:
        artifact.save(Path(folder) / "scale.tessera")
        loaded = ts.load(Path(folder) / "scale.tessera")
    a = np.ones(64, np.float32)
    loaded(a, a)
