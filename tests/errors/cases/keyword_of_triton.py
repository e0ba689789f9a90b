"""A keyword that Triton's function has."""

import tessera as ts


def kernel(x: ts.Tensor[16, 16, ts.f32]):
    x[:, :] = ts.tile.dot(x[:, :], x[:, :], allow_tf32=True)
