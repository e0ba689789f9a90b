"""A backend that does not exist."""

import tessera as ts


def call():
    ts.runtime.select_backend("metal")
