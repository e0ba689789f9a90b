"""A scalar of 8 bits."""

import tessera as ts


def kernel(x: ts.fp8_e4m3):
    pass
