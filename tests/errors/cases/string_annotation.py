"""A local name in a string annotation."""

from __future__ import annotations

import tessera as ts


def make():
    dtype = ts.f32

    def kernel(x: ts.Tensor[8, dtype]):
        x[0:8] = 1.0

    return kernel


kernel = make()
