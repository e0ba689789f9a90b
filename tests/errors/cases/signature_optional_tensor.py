"""A parameter that may be None."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32] | None):
    pass
