"""The kernel of Hadamard transforms: butterflies along rows."""

from __future__ import annotations

import math
from typing import Any

import tessera as ts
from tessera.ops.annotations import F64, Constant

T = ts.dtype_var("T", ts.bf16, ts.f16, ts.f32, ts.f64)
S = ts.dtype_var("S", ts.bf16, ts.f16, ts.f32, ts.f64)
M, N = ts.dims("M N")


@ts.function
def butterflies(x: Any) -> Any:
    """Return the rows of `x`, of a power of two of elements, times the Hadamard matrix in Sylvester's order."""
    columns = ts.tile.arange(x.shape[1])
    for bit in ts.tile.static_range(int(math.log2(x.shape[1]))):
        sign = ts.tile.where((columns >> bit) % 2 == 0, 1.0, -1.0).to(x.dtype)
        x = ts.tile.fma(x, sign[None, :], ts.tile.exchange(x, 1 << bit, 1))
    return x


@ts.kernel
def transform(
    x: ts.Tensor[M, N, T],
    signs: ts.Tensor[N, S] | None,
    out: ts.Tensor[M, N, T],
    scale: F64,
    after: Constant,
    acc: Constant,
    R: Constant,
):
    """Rows times signs, the matrix and a scale; `after` says that signs come after the matrix, as in the transpose."""
    for m in ts.tile.grid((M, R)):
        block = x[m : m + R, :].to(acc)
        if signs is not None and not after:
            block = block * signs[:].to(acc)[None, :]
        block = butterflies(block) * scale.to(acc)
        if signs is not None and after:
            block = block * signs[:].to(acc)[None, :]
        out[m : m + R, :] = block
