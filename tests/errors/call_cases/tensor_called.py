"""An annotation with parentheses in place of brackets."""

import tessera as ts


def call():
    @ts.kernel
    def fill(y: ts.Tensor("n", ts.f32)):  # pyright: ignore
        pass
