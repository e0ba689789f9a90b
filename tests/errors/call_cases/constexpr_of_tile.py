"""An annotation under the name that Triton has for it."""

import tessera as ts


def call():
    @ts.kernel
    def fill(y: ts.Tensor["n", ts.f32], BLOCK: ts.tile.constexpr):
        pass
