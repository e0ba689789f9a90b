"""A sample variance of one element."""

import tessera as ts


def kernel(x: ts.Tensor[4, 1, ts.f32], y: ts.Tensor[4, ts.f32]):
    y[:] = ts.tile.var(x[:, :], axis=1, ddof=1)
