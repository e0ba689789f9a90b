"""The decorator of helpers called without a function."""

import tessera as ts


def call():
    @ts.function()
    def twice(x):
        return x + x
