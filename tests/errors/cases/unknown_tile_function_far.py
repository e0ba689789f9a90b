"""A name that is near none."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32]):
    x[0:8] = ts.tile.zip_with(x[0:4], x[4:8])
