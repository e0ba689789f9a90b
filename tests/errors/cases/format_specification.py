"""A format specification in a print."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    print(f"value {x[0]:.3f}")
