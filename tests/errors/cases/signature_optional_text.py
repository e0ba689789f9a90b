"""A parameter that may be None, in an annotation that is a string."""

import tessera as ts


def kernel(x: 'ts.Tensor["n", ts.f32] | None'):
    pass
