"""An order that a store cannot have."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.i32], y: ts.Tensor["n", ts.i32]):
    ts.tile.atomic_store(y[0], x[0], order="acq_rel")
