"""Softmax over rows: one program per row, and a row of any length is one tile."""

import functools
from typing import Any

import numpy as np
from harness import TOLERANCE, Case, Place, host, main

import tessera as ts


@functools.cache
def softmax_for(dtype: ts.DType) -> Any:
    """Return the kernel for an element type; the arithmetic is f32 for all of them."""

    @ts.kernel
    def softmax(X: ts.Tensor["M", "N", dtype], Y: ts.Tensor["M", "N", dtype]):
        for m in ts.tile.grid((M, 1)):
            x = ts.tile.cast(X[m, :], ts.f32)
            e = ts.tile.exp(x - ts.tile.row_max(x))
            Y[m, :] = e / ts.tile.row_sum(e)
        return Y

    return softmax


def reference(x: np.ndarray) -> np.ndarray:
    """Return the result in float64."""
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def case(place: Place, m: int = 1000, n: int = 777) -> Case:
    """Return a call and its expected result."""
    kernel, x, y = softmax_for(place.dtype), place.normal(m, n), place.empty(m, n)
    return Case(
        f"softmax {place.dtype} {m}x{n}",
        place,
        lambda: kernel(x, y),
        reference(host(x)),
        TOLERANCE[place.dtype.name],
    )


if __name__ == "__main__":
    raise SystemExit(main(case))
