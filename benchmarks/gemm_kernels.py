"""The kernels that `gemm.py` measures: plain tile code, for contiguous and transposed operands alike."""

import functools
from typing import Any

import tessera as ts

WIDE = dict(BM=[128], BN=[256], num_warps=[8])
SQUARE = dict(BM=[128], BN=[128], BK=[64], num_warps=[8])


@functools.cache
def product_for(dtype: ts.DType, out: ts.DType) -> Any:
    """Return C = A·B for an element type of A and B and one of C; `BK` is 128 bytes."""
    sums = ts.i32 if out == ts.i32 else ts.f32
    space = WIDE | dict(BK=[128 // dtype.bytes])

    @ts.kernel.autotune(space=space, key=("M", "N", "K"))
    def product(A: ts.Tensor["M", "K", dtype], B: ts.Tensor["K", "N", dtype], C: ts.Tensor["M", "N", out]):
        ctx = ts.tile.context()
        for m, n in ts.tile.grid((M, ctx.BM), (N, ctx.BN)):
            acc = ts.tile.zeros((ctx.BM, ctx.BN), sums)
            for k in ts.tile.range(0, K, ctx.BK):
                acc = ts.tile.mma(A[m : m + ctx.BM, k : k + ctx.BK], B[k : k + ctx.BK, n : n + ctx.BN], acc)
            C[m : m + ctx.BM, n : n + ctx.BN] = acc

    return product


@ts.kernel.autotune(space=WIDE | dict(BK=[64]), key=("M", "N", "K"))
def linear_gelu(
    A: ts.Tensor["M", "K", ts.bf16],
    B: ts.Tensor["K", "N", ts.bf16],
    bias: ts.Tensor["N", ts.bf16],
    C: ts.Tensor["M", "N", ts.bf16],
):
    """C = GELU(A·B + bias), the tanh form."""
    ctx = ts.tile.context()
    for m, n in ts.tile.grid((M, ctx.BM), (N, ctx.BN)):
        acc = ts.tile.zeros((ctx.BM, ctx.BN), ts.f32)
        for k in ts.tile.range(0, K, ctx.BK):
            acc = ts.tile.mma(A[m : m + ctx.BM, k : k + ctx.BK], B[k : k + ctx.BK, n : n + ctx.BN], acc)
        x = acc + bias[n : n + ctx.BN]
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        C[m : m + ctx.BM, n : n + ctx.BN] = x * ts.tile.sigmoid(2.0 * inner)


@ts.kernel.autotune(space=SQUARE, key=("M", "N", "K"))
def gated(
    X: ts.Tensor["M", "K", ts.bf16],
    G: ts.Tensor["K", "N", ts.bf16],
    U: ts.Tensor["K", "N", ts.bf16],
    Y: ts.Tensor["M", "N", ts.bf16],
):
    """Y = SiLU(X·G) * (X·U)."""
    ctx = ts.tile.context()
    for m, n in ts.tile.grid((M, ctx.BM), (N, ctx.BN)):
        gate = ts.tile.zeros((ctx.BM, ctx.BN), ts.f32)
        up = ts.tile.zeros((ctx.BM, ctx.BN), ts.f32)
        for k in ts.tile.range(0, K, ctx.BK):
            x = X[m : m + ctx.BM, k : k + ctx.BK]
            gate = ts.tile.mma(x, G[k : k + ctx.BK, n : n + ctx.BN], gate)
            up = ts.tile.mma(x, U[k : k + ctx.BK, n : n + ctx.BN], up)
        Y[m : m + ctx.BM, n : n + ctx.BN] = gate * ts.tile.sigmoid(gate) * up


@ts.kernel.autotune(space=WIDE | dict(BK=[32], stages=[4]), key=("M", "N", "K"))
def dequantised(
    A: ts.Tensor["M", "K", ts.i8],
    scale: ts.Tensor["M", ts.f32],
    B: ts.Tensor["K", "N", ts.bf16],
    C: ts.Tensor["M", "N", ts.bf16],
):
    """C = scale * (A·B), A converted on its way to the product."""
    ctx = ts.tile.context()
    for m, n in ts.tile.grid((M, ctx.BM), (N, ctx.BN)):
        acc = ts.tile.zeros((ctx.BM, ctx.BN), ts.f32)
        for k in ts.tile.range(0, K, ctx.BK):
            left = A[m : m + ctx.BM, k : k + ctx.BK].to(ts.bf16)
            acc = ts.tile.mma(left, B[k : k + ctx.BK, n : n + ctx.BN], acc)
        C[m : m + ctx.BM, n : n + ctx.BN] = acc * scale[m : m + ctx.BM][:, None]
