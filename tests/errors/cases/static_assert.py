"""An assertion that is false at compile time."""

import tessera as ts

BLOCK = 48


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    assert 64 % BLOCK == 0, "BLOCK must divide 64"
