"""A memory order that does not exist."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    ts.tile.atomic_add(y[0], 1.0, order="seq-cst")
