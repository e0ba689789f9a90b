"""Kernels of GroupNorm: a row holds the channels of one group of one sample, each of `S` elements."""

from __future__ import annotations

from typing import Any

import tessera as ts
from tessera.ops.annotations import F64, I64, Constant
from tessera.ops.norm.kernels import normalised, row_gradient

T = ts.dtype_var("T", ts.bf16, ts.f16, ts.f32, ts.f64)
W = ts.dtype_var("W", ts.bf16, ts.f16, ts.f32, ts.f64)
A = ts.dtype_var("A", ts.f32, ts.f64)
B, C, G, M, N = ts.dims("B C G M N")


@ts.function
def of_channels(vector: Any, m: Any, groups: Any, size: Any, count: Any) -> Any:
    """Return the number of its channel for each element of a row."""
    return vector[m % groups * (count // size) + ts.tile.arange(count, dtype=ts.i64) // size]


@ts.kernel
def forward(
    x: ts.Tensor[M, N, T],
    weight: ts.Tensor[C, W] | None,
    bias: ts.Tensor[C, W] | None,
    out: ts.Tensor[M, N, T],
    mean: ts.Tensor[M, A] | None,
    rstd: ts.Tensor[M, A] | None,
    groups: I64,
    eps: F64,
    S: Constant,
    acc: Constant,
):
    """Normalise rows, then scale and shift each channel."""
    for m in ts.tile.grid((M, 1)):
        row = x[m, :].to(acc)
        middle = ts.tile.sum(row) / N
        row = row - middle
        scale = ts.tile.rsqrt(ts.tile.sum(row * row) / N + eps.to(acc))
        if mean is not None:
            mean[m] = middle
        if rstd is not None:
            rstd[m] = scale
        row = row * scale
        if weight is not None:
            row = row * of_channels(weight, m, groups, S, N).to(acc)
        if bias is not None:
            row = row + of_channels(bias, m, groups, S, N).to(acc)
        out[m, :] = row


@ts.kernel
def backward(
    grad: ts.Tensor[M, N, T],
    x: ts.Tensor[M, N, T],
    weight: ts.Tensor[C, W] | None,
    mean: ts.Tensor[M, A],
    rstd: ts.Tensor[M, A],
    grad_x: ts.Tensor[M, N, T],
    groups: I64,
    S: Constant,
    acc: Constant,
):
    """Gradients of rows."""
    for m in ts.tile.grid((M, 1)):
        g = grad[m, :].to(acc)
        if weight is not None:
            g = g * of_channels(weight, m, groups, S, N).to(acc)
        grad_x[m, :] = row_gradient(g, normalised(x, m, mean, rstd, acc), rstd[m], True)


@ts.kernel
def channel_sums(
    grad: ts.Tensor[B, C, N, T],
    x: ts.Tensor[B, C, N, T],
    mean: ts.Tensor[B, G, A],
    rstd: ts.Tensor[B, G, A],
    of_weight: ts.Tensor[C, W] | None,
    of_bias: ts.Tensor[C, W] | None,
    acc: Constant,
    BN: Constant,
):
    """Gradients of weights and biases: sums over samples and the elements of a channel, in one order."""
    for c in ts.tile.grid((C, 1)):
        group = c // (C // G)
        scaled, plain = ts.tile.zeros((BN,), acc), ts.tile.zeros((BN,), acc)
        for b in ts.tile.range(B):
            for n in ts.tile.range(0, N, BN):
                g = grad[b, c, n : n + BN].to(acc)
                plain = plain + g
                if of_weight is not None:
                    scaled = scaled + g * ((x[b, c, n : n + BN].to(acc) - mean[b, group]) * rstd[b, group])
        if of_weight is not None:
            of_weight[c] = ts.tile.sum(scaled)
        if of_bias is not None:
            of_bias[c] = ts.tile.sum(plain)
