"""A tensor with a default."""

import tessera as ts


def kernel(x: ts.Tensor[8, ts.f32] = None):
    pass
