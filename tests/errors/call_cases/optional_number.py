"""A number that may be missing."""

import tessera as ts


def call():
    @ts.kernel
    def fill(y: ts.Tensor["n", ts.f32], scale: ts.f32 | None = None):
        pass
