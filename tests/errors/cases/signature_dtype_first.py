"""A tensor whose dtype is not last."""

import tessera as ts


def kernel(x: ts.Tensor[ts.f32, "M"]):
    pass
