"""A helper uses a dimension's name that it was not given."""

import tessera as ts


@ts.function
def helper(t):
    t[0] = n


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    helper(y)
