"""Loading what is no path."""

import tessera as ts


def call():
    ts.load(None)
