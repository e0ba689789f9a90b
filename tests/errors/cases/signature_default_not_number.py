"""A default that is not a number."""

import tessera as ts


def kernel(x: ts.f32 = "a"):
    pass
