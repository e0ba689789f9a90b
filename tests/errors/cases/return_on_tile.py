"""A return of the elements outside, as in languages of threads."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    i = ts.tile.linear_id()
    if i >= n:
        return
    y[i] = x[i]
