"""A function that a namespace does not have."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32]):
    ts.tile.mbarrier.init(2)
