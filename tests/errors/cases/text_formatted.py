"""A text is formatted by an operator."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32]):
    for i in ts.tile.grid((n, 8)):
        print("%d" % i)  # noqa: UP031
