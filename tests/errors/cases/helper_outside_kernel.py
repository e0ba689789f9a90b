"""A helper outside a kernel."""

import tessera as ts


@ts.function
def double(x):
    return x * 2


four = double(2)
