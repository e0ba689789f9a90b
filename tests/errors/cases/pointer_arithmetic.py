"""A tensor and offsets, as pointers are added to in Triton."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    y[0:8] = ts.tile.load(x + ts.tile.arange(8))
