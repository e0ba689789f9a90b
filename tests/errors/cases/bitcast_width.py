"""A bitcast to another width."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.i16]):
    y[0:8] = ts.tile.bitcast(x[0:8], ts.i16)
