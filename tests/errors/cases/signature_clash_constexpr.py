"""A dimension has the name of a compile-time parameter."""

import tessera as ts


def kernel(x: ts.Tensor["K//G", ts.f32], G: ts.constexpr = 32):
    pass
