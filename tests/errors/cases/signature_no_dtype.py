"""A tensor without dtype."""

import tessera as ts


def kernel(x: ts.Tensor["M", "N"]):
    pass
