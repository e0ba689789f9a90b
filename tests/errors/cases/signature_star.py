"""A parameter that collects arguments."""

import tessera as ts


def kernel(*xs: ts.Tensor[8, ts.f32]):
    pass
