"""A float atomic in the deterministic profile."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    ts.tile.atomic_add(y[0:8], x[0:8])


OPTIONS = {"profile": "deterministic"}
