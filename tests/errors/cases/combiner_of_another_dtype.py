"""A combiner gives what it takes."""

import tessera as ts


@ts.function
def widened(a, b):
    return ts.tile.cast(a, ts.f32) + ts.tile.cast(b, ts.f32)


def kernel(x: ts.Tensor["n", ts.bf16], y: ts.Tensor["n", ts.bf16]):
    y[0:8] = ts.tile.associative_scan(x[0:8], 0, widened)
