"""A scope that does not exist."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.i32], y: ts.Tensor["n", ts.i32]):
    ts.tile.fence(scope="gpu")
