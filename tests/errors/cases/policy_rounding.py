"""A store to a tensor that wants stochastic rounding."""

import tessera as ts


def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", "bf16 @stochastic_round"]):
    y[0:8] = x[0:8]
