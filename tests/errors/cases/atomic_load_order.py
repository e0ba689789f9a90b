"""An order that a load cannot have."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.i32], y: ts.Tensor["n", ts.i32]):
    y[0] = ts.tile.atomic_load(x[0], order="release")
