"""A numeric rule that does not exist."""

import tessera as ts


def kernel(x: ts.Tensor["M", "bf16 @acc(f32)"]):
    pass
