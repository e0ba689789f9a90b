"""Loading what is not a path."""

import tessera as ts


def call():
    ts.load(None)
