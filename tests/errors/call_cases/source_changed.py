"""A factory decorates its kernel after the file has been edited."""

import linecache

import numpy as np

import tessera as ts


def factory(half):
    @ts.kernel
    def scaled(x: ts.Tensor["n", ts.f32]):
        x[0:4] = x[0:4] * half * 1.0

    return scaled


def call():
    linecache.getlines(__file__)
    size, mtime, lines, name = linecache.cache[__file__]
    edited = [line.replace("half * 1.0", "half * 2.0") for line in lines]
    linecache.cache[__file__] = (size, mtime, edited, name)
    try:
        factory(0.5)(np.ones(4, np.float32))
    finally:
        linecache.cache[__file__] = (size, mtime, lines, name)
