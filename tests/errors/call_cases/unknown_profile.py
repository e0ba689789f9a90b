"""A numerics profile that does not exist."""

import tessera as ts


def call():
    with ts.numerics.profile("exact"):
        pass
