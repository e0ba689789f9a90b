"""A default that is no number."""

import tessera as ts


def kernel(x: ts.f32 = "a"):
    pass
