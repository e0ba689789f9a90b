"""Kernels that `gemm.py` measures beside those of the library: plain tile code."""

import tessera as ts

WIDE = dict(BM=[128], BN=[256], BK=[32], stages=[4], num_warps=[8])
SQUARE = dict(BM=[128], BN=[128], BK=[64], num_warps=[8])


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


@ts.kernel.autotune(space=WIDE, key=("M", "N", "K"))
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
