"""A dimension that is no expression of names and integers."""

import tessera as ts


def kernel(x: ts.Tensor["M/2", ts.f32]):
    pass
