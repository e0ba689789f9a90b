"""LayerNorm over rows: mean, then variance of the centred row, both on the tile that was read once."""

import functools
from typing import Any

import numpy as np
from harness import TOLERANCE, Case, Place, host, main

import tessera as ts


@functools.cache
def layernorm_for(dtype: ts.DType) -> Any:
    """Return the kernel for an element type; the arithmetic is f32 for all of them."""

    @ts.kernel
    def layernorm(
        X: ts.Tensor["M", "N", dtype],
        W: ts.Tensor["N", dtype],
        B: ts.Tensor["N", dtype],
        Y: ts.Tensor["M", "N", dtype],
        eps: ts.f32 = 1e-5,
    ):
        for m in ts.tile.grid((M, 1)):
            x = ts.tile.cast(X[m, :], ts.f32)
            centred = x - ts.tile.row_sum(x) / N
            variance = ts.tile.row_sum(centred * centred) / N
            Y[m, :] = centred * ts.tile.rsqrt(variance + eps) * W[:] + B[:]
        return Y

    return layernorm


def reference(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, eps: float) -> np.ndarray:
    """Return the result in float64."""
    centred = x - x.mean(axis=1, keepdims=True)
    return centred / np.sqrt(np.mean(centred**2, axis=1, keepdims=True) + eps) * weight + bias


def case(place: Place, m: int = 1000, n: int = 777) -> Case:
    """Return a call and its expected result."""
    kernel, eps = layernorm_for(place.dtype), 1e-5
    x, weight, bias, y = place.normal(m, n), place.normal(n), place.normal(n), place.empty(m, n)
    expected = reference(host(x), host(weight), host(bias), eps)
    name = f"layernorm {place.dtype} {m}x{n}"
    return Case(name, place, lambda: kernel(x, weight, bias, y, eps), expected, TOLERANCE[place.dtype.name])


if __name__ == "__main__":
    raise SystemExit(main(case))
