"""Nested lists of different lengths."""

import tessera as ts


def call():
    ts.asarray([1, [2, 3]])
