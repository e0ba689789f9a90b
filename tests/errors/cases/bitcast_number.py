"""A bitcast of a Python number, which has no width."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.i32]):
    x[0] = ts.tile.bitcast(1.0, ts.i32)
