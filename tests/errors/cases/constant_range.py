"""A number does not fit the tile's dtype."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.i8], y: ts.Tensor["n", ts.i32]):
    y[0:8] = x[0:8] + 300
