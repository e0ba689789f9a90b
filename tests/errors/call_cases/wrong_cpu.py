"""Code for another architecture."""

import tempfile
from pathlib import Path

import numpy as np

import tessera as ts


@ts.kernel
def doubled(x: ts.Tensor["n", ts.f32]):
    for i in ts.tile.grid((n, 16)):
        x[i : i + 16] = x[i : i + 16] * 2.0


def call():
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "doubled.tessera"
        ts.compile(doubled, target="aarch64").save(path)
        loaded = ts.load(path)
    loaded(np.ones(16, np.float32))
