"""A combiner computes with its elements, and does nothing else."""

import tessera as ts


@ts.function
def shown(a, b):
    print(a)
    return a + b


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    y[0] = ts.tile.reduce(x[0:8], 0, shown)
