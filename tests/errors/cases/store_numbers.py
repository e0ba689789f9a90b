"""A tuple of numbers is stored."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32]):
    x[0:2] = (1.0, 2.0)
