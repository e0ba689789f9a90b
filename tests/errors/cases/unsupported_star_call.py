"""Unpacking into a call."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    shape = (8,)
    y[0:8] = ts.tile.zeros(*shape)
