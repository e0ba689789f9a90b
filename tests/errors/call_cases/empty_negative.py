"""An array of negative size."""

import tessera as ts


def call():
    ts.empty((-1,))
