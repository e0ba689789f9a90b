"""A float as a bound of random integers."""

import tessera as ts


def kernel(y: ts.Tensor[8, ts.i32]):
    y[:] = ts.tile.randint(1, ts.tile.arange(8), 0, 2.5)
