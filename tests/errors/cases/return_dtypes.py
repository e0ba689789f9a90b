"""A helper whose returns differ in dtype."""

import tessera as ts


@ts.function
def rounded(x, coarse):
    for k in ts.tile.range(8):
        if k == coarse:
            return ts.tile.cast(x, ts.bf16)
    return x


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], coarse: int):
    y[0:8] = rounded(x[0:8], coarse)
