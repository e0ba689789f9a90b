"""Tiles of two shapes side by side."""

import tessera as ts


def kernel(x: ts.Tensor[8, ts.f32], y: ts.Tensor[4, ts.f32], z: ts.Tensor[2, 8, ts.f32]):
    z[:, :] = ts.tile.stack((x[:], y[:]))
