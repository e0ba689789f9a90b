"""RMSNorm over rows, x / sqrt(mean(x²) + eps) * weight: a row is read once and stays in registers."""

import functools
from typing import Any

import numpy as np
from harness import TOLERANCE, Case, Place, host, main

import tessera as ts


@functools.cache
def rmsnorm_for(dtype: ts.DType) -> Any:
    """Return the kernel for an element type; the arithmetic is f32 for all of them."""

    @ts.kernel
    def rmsnorm(
        X: ts.Tensor["M", "N", dtype],
        W: ts.Tensor["N", dtype],
        Y: ts.Tensor["M", "N", dtype],
        eps: ts.f32 = 1e-6,
    ):
        for m in ts.tile.grid((M, 1)):
            x = ts.tile.cast(X[m, :], ts.f32)
            scale = ts.tile.rsqrt(ts.tile.row_sum(x * x) / N + eps)
            Y[m, :] = x * scale * W[:]
        return Y

    return rmsnorm


def reference(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """Return the result in float64."""
    return x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + eps) * weight


def case(place: Place, m: int = 1000, n: int = 777) -> Case:
    """Return a call and its expected result."""
    kernel, eps = rmsnorm_for(place.dtype), 1e-5
    x, weight, y = place.normal(m, n), place.normal(n), place.empty(m, n)
    expected = reference(host(x), host(weight), eps)
    name = f"rmsnorm {place.dtype} {m}x{n}"
    return Case(name, place, lambda: kernel(x, weight, y, eps), expected, TOLERANCE[place.dtype.name])


if __name__ == "__main__":
    raise SystemExit(main(case))
