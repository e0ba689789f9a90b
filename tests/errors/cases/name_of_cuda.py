"""A name that CUDA has and nothing defines."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32]):
    x[threadIdx.x] = 1.0
