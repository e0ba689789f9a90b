"""A dimension symbol that is not an identifier."""

import tessera as ts

M = ts.dims("M 2")


def kernel(x: int):
    pass
