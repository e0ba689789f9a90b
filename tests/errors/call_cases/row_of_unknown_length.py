"""A dimension that must be known is not."""

import tessera as ts


@ts.kernel
def row_sum(x: ts.Tensor["M", "N", ts.f32], y: ts.Tensor["M", ts.f32]):
    for m in ts.tile.grid((M, 4)):
        y[m : m + 4] = ts.tile.row_sum(x[m : m + 4, :])


def call():
    ts.compile(row_sum, target="cpu")
