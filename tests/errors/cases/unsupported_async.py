"""A coroutine as a kernel."""

import tessera as ts


@ts.kernel
async def kernel(x: ts.Tensor["n", ts.f32]):
    x[0:8] = 1.0
