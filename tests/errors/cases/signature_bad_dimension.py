"""A dimension that is no product."""

import tessera as ts


def kernel(x: ts.Tensor["M+1", ts.f32]):
    pass
