"""The slice is smaller than the shared buffer."""

import tessera as ts


def kernel(A: ts.Tensor["M", "K", ts.f32], C: ts.Tensor["M", "N", ts.f32]):
    buffer = ts.tile.alloc_shared((32, 32), ts.f32)
    ts.tile.cp_async(buffer, A[0:16, 0:32])
