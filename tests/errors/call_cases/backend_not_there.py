"""A backend that is not there yet."""

import tessera as ts


def call():
    ts.runtime.select_backend("rocm")
