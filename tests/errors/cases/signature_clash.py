"""A dimension has a parameter's name."""

import tessera as ts


def kernel(n: int, x: ts.Tensor["n", ts.f32]):
    pass
