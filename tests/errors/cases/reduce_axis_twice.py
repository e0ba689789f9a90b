"""An axis named twice, once from each end."""

import tessera as ts


def kernel(x: ts.Tensor[4, 8, ts.f32], y: ts.Tensor[8, ts.f32]):
    y[:] = x[:, :].sum(axis=(0, -2))
