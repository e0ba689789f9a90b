"""A message that is known only when the kernel runs."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], s: ts.i32):
    for i in ts.tile.grid((n, 16)):
        assert x[i : i + 16] > 0, s
