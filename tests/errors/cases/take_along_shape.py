"""An index of other sizes."""

import tessera as ts


def kernel(x: ts.Tensor["m", 16, ts.f32], y: ts.Tensor["m", 16, ts.f32]):
    v = ts.tile.zeros((3, 4), ts.i32)
    y[0:3, 0:4] = ts.tile.take_along_axis(x[0:8, :], v, 1)
