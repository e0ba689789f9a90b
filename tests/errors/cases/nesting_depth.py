"""Helpers called inside one another beyond what Python's stack holds."""

import tessera as ts


@ts.function
def leaf(v):
    return v + 1.0


def around(inner):
    @ts.function
    def outer(v):
        return inner(v)

    return outer


helper = leaf
for _ in range(600):
    helper = around(helper)


def kernel(x: ts.Tensor["n", ts.f32]):
    x[0] = helper(0.0)
