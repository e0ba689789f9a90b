"""A compile-time parameter whose annotation is given its value."""

import tessera as ts


def call():
    @ts.kernel
    def fill(y: ts.Tensor["n", ts.f32], BLOCK: ts.constexpr(64)):  # pyright: ignore
        pass
