"""Bias and GELU in one pass, by erf or by the tanh approximation: a compile-time flag picks the formula."""

import functools
import math
from typing import Any

import numpy as np
from harness import TOLERANCE, Case, Place, host, main

import tessera as ts


@functools.cache
def bias_gelu_for(dtype: ts.DType) -> Any:
    """Return the kernel for an element type; the arithmetic is f32 for all of them."""

    @ts.kernel
    def bias_gelu(
        X: ts.Tensor["M", "N", dtype],
        B: ts.Tensor["N", dtype],
        Y: ts.Tensor["M", "N", dtype],
        approximate: bool = False,
    ):
        for m, n in ts.tile.grid((M, 16), (N, 256)):
            x = ts.tile.cast(X[m : m + 16, n : n + 256], ts.f32) + B[n : n + 256]
            Y[m : m + 16, n : n + 256] = ts.tile.gelu(x, approximate=approximate)
        return Y

    return bias_gelu


def reference(x: np.ndarray, bias: np.ndarray, approximate: bool) -> np.ndarray:
    """Return the result in float64."""
    x = x + bias
    if approximate:
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def case(place: Place, m: int = 300, n: int = 777, approximate: bool = False) -> Case:
    """Return a call and its expected result."""
    kernel, x, bias, y = bias_gelu_for(place.dtype), place.normal(m, n), place.normal(n), place.empty(m, n)
    return Case(
        f"bias+gelu ({'tanh' if approximate else 'erf'}) {place.dtype} {m}x{n}",
        place,
        lambda: kernel(x, bias, y, approximate),
        reference(host(x), host(bias), approximate),
        TOLERANCE[place.dtype.name],
    )


if __name__ == "__main__":
    raise SystemExit(main(case, lambda place: case(place, approximate=True)))
