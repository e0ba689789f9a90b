"""A number that the dtype does not hold."""

import tessera as ts


def call():
    ts.full(3, 300, ts.i8)
