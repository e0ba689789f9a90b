"""A parameter that may be a number."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32] | int):
    pass
