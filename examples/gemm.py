"""Matrix product from tile slices: staging, pipelining and tensor cores are the compiler's.

The seed's kernel had no K loop and undefined offsets: here `grid` gives m and n, and `range` gives k.
"""

import functools
from typing import Any

import numpy as np
from harness import TOLERANCE, Case, Place, host, main

import tessera as ts

# The first point that fits the target is used, so the best one of the largest GPUs stands first.
GPU_SPACE = dict(BM=[128], BN=[256], BK=[64, 32], stages=[3, 2, 1], num_warps=[8])
CPU_SPACE = dict(BM=[128], BN=[256], BK=[128])


@functools.cache
def gemm_for(dtype: ts.DType, out: ts.DType, device: str) -> Any:
    """Return the kernel for an element type of A and B, one of C, and a kind of device."""

    @ts.kernel.autotune(space=CPU_SPACE if device == "cpu" else GPU_SPACE, key=("M", "N", "K"))
    def gemm(A: ts.Tensor["M", "K", dtype], B: ts.Tensor["K", "N", dtype], C: ts.Tensor["M", "N", out]):
        ctx = ts.tile.context()
        for m, n in ts.tile.grid((M, ctx.BM), (N, ctx.BN)):
            acc = ts.tile.zeros((ctx.BM, ctx.BN), ts.f32)
            for k in ts.tile.range(0, K, ctx.BK):
                acc = ts.tile.mma(A[m : m + ctx.BM, k : k + ctx.BK], B[k : k + ctx.BK, n : n + ctx.BN], acc)
            C[m : m + ctx.BM, n : n + ctx.BN] = acc
        return C

    return gemm


def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the result in float64."""
    return a @ b


def case(place: Place, m: int = 300, n: int = 333, k: int = 777) -> Case:
    """Return a call and its expected result."""
    kernel = gemm_for(place.dtype, place.dtype, place.device)
    a, b, c = place.normal(m, k), place.normal(k, n), place.empty(m, n)
    name = f"gemm {place.dtype} {m}x{n}x{k}"
    return Case(name, place, lambda: kernel(a, b, c), reference(host(a), host(b)), TOLERANCE[place.dtype.name])


if __name__ == "__main__":
    raise SystemExit(main(case))
