"""An unrolled loop with a run-time bound."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], count: int):
    for k in ts.tile.static_range(count):
        y[k] = x[k]
