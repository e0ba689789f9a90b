"""Configurations at the decorator, as Triton takes them."""

import tessera as ts


def call():
    ts.kernel.autotune(configs=[{"BM": 64}], key=["n"])
