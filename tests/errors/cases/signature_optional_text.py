"""A parameter that may be a number, in an annotation that is a string."""

import tessera as ts


def kernel(x: 'ts.Tensor["n", ts.f32] | int'):
    pass
