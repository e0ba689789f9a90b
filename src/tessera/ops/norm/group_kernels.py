"""Kernels of GroupNorm: a row holds the channels of one group of one sample, each of `S` elements.

Those by channels take rows in blocks of `BK` channels and `BS` elements twice, the second time from a cache.
"""

from __future__ import annotations

from typing import Any

import tessera as ts
from tessera.ops.annotations import F64, I64, Constant
from tessera.ops.norm.kernels import normalised, row_gradient

T = ts.dtype_var("T", ts.bf16, ts.f16, ts.f32, ts.f64)
W = ts.dtype_var("W", ts.bf16, ts.f16, ts.f32, ts.f64)
A = ts.dtype_var("A", ts.f32, ts.f64)
B, C, G, K, L, M, N = ts.dims("B C G K L M N")
TOGETHER = 8
"""Elements that a thread adds up before they join others: registers are left for more rows."""


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


@ts.function
def joined_with(means: Any, squares: Any, block: Any, inside: Any, before: Any) -> Any:
    """Return the means and squares of groups of `before` elements each, and of those of a block that are inside.

    Squares are sums over what elements differ by from their mean; how two of them make one is of Chan, 1979.
    """
    count = ts.tile.sum(inside.to(block.dtype), 1)
    apart = ts.tile.where(inside, block - means[:, None], 0.0)
    between = ts.tile.sum(apart, 1) / ts.tile.maximum(count, 1.0)
    apart = ts.tile.where(inside, apart - between[:, None], 0.0)
    part = between * (count / ts.tile.maximum(before + count, 1.0))
    return means + part, squares + ts.tile.sum(apart * apart, 1) + between * part * before


@ts.function
def statistics(row: Any, m: Any, size: Any, acc: Any, BN: Any) -> Any:
    """Return the mean of a row and the sum of squares of what its elements differ by, each element read once.

    Groups of elements that a thread has have a mean and a sum of their own, and all have one in the end. Nothing as
    large as the mean is added up, so that what elements differ by may be a small part of it.
    """
    means, squares = ts.tile.zeros((BN // TOGETHER,), acc), ts.tile.zeros((BN // TOGETHER,), acc)
    whole = size // BN
    for i in ts.tile.range(0, whole):
        block = row[m, i * BN : (i + 1) * BN].to(acc).reshape((BN // TOGETHER, TOGETHER))
        apart = block - means[:, None]
        between = ts.tile.sum(apart, 1) * (1.0 / TOGETHER)
        apart = apart - between[:, None]
        part = between * (1.0 / (i + 1).to(acc))
        means = means + part
        squares = squares + ts.tile.sum(apart * apart, 1) + between * part * (i * TOGETHER).to(acc)
    before = 1.0 * whole * TOGETHER
    counts = ts.tile.full((BN // TOGETHER,), before, acc)
    if size % BN:
        inside = (ts.tile.arange(BN) < size % BN).reshape((BN // TOGETHER, TOGETHER))
        block = row[m, whole * BN : (whole + 1) * BN].to(acc).reshape((BN // TOGETHER, TOGETHER))
        means, squares = joined_with(means, squares, block, inside, before)
        counts = counts + ts.tile.sum(inside.to(acc), 1)
    near = ts.tile.sum(ts.tile.where(counts > 0.0, means, 0.0)) / min(BN // TOGETHER, size // TOGETHER)
    apart = means - near
    mean = ts.tile.sum(apart * counts) / size
    rest = apart - mean
    return near + mean, ts.tile.sum(squares + rest * rest * counts)


@ts.function
def added(total: Any, block: Any) -> Any:
    """Return sums of elements that a thread has, plus those of a block."""
    return total + ts.tile.sum(block.reshape((block.shape[0], block.shape[1] // TOGETHER, TOGETHER)), 2)


@ts.function
def factors(weight: Any, first: Any, count: Any, acc: Any) -> Any:
    """Return the weights of some channels."""
    if weight is None:
        return ts.tile.full((count,), 1.0, acc)
    return weight[first : first + count].to(acc)


@ts.kernel
def forward_by_channels(
    row: ts.Tensor[M, N, T],
    x: ts.Tensor[M, K, L, T],
    weight: ts.Tensor[C, W] | None,
    bias: ts.Tensor[C, W] | None,
    out: ts.Tensor[M, K, L, T],
    mean: ts.Tensor[M, A] | None,
    rstd: ts.Tensor[M, A] | None,
    groups: I64,
    eps: F64,
    size: Constant,
    acc: Constant,
    BK: Constant,
    BS: Constant,
):
    """Normalise rows of `size` elements, which are given flat and by channels, then scale and shift each channel."""
    for m in ts.tile.grid((M, 1)):
        middle, squares = statistics(row, m, size, acc, BK * BS)
        scale = ts.tile.rsqrt(squares / size + eps.to(acc))
        if mean is not None:
            mean[m] = middle
        if rstd is not None:
            rstd[m] = scale
        for k in ts.tile.range(0, K, BK):
            first = m % groups * K + k
            by = (factors(weight, first, BK, acc) * scale)[:, None]
            for s in ts.tile.range(0, L, BS):
                block = (x[m, k : k + BK, s : s + BS].to(acc) - middle) * by
                if bias is not None:
                    block = block + bias[first : first + BK].to(acc)[:, None]
                out[m, k : k + BK, s : s + BS] = block


@ts.kernel
def backward_by_channels(
    grad: ts.Tensor[M, K, L, T],
    x: ts.Tensor[M, K, L, T],
    weight: ts.Tensor[C, W] | None,
    mean: ts.Tensor[M, A],
    rstd: ts.Tensor[M, A],
    grad_x: ts.Tensor[M, K, L, T],
    sums: ts.Tensor[2, M, K, A],
    groups: I64,
    acc: Constant,
    BK: Constant,
    BS: Constant,
):
    """Gradients of rows; `sums` keeps those of each channel, of gradients times what is normalised and alone."""
    for m in ts.tile.grid((M, 1)):
        middle, scale = mean[m], rstd[m]
        along, total = ts.tile.zeros((BK,), acc), ts.tile.zeros((BK,), acc)
        for k in ts.tile.range(0, K, BK):
            scaled, plain = (ts.tile.zeros((BK, BS // TOGETHER), acc),) * 2
            for s in ts.tile.range(0, L, BS):
                g = grad[m, k : k + BK, s : s + BS].to(acc)
                plain = added(plain, g)
                scaled = added(scaled, g * (x[m, k : k + BK, s : s + BS].to(acc) - middle))
            of_weight, of_bias = ts.tile.sum(scaled, 1) * scale, ts.tile.sum(plain, 1)
            sums[0, m, k : k + BK] = of_weight
            sums[1, m, k : k + BK] = of_bias
            by = factors(weight, m % groups * K + k, BK, acc)
            along = along + by * of_weight
            total = total + by * of_bias
        size = (K * L).to(acc)
        part = scale * scale * ts.tile.sum(along) / size
        rest = scale * ts.tile.sum(total) / size
        for k in ts.tile.range(0, K, BK):
            by = (factors(weight, m % groups * K + k, BK, acc) * scale)[:, None]
            for s in ts.tile.range(0, L, BS):
                block = x[m, k : k + BK, s : s + BS].to(acc) - middle
                g = grad[m, k : k + BK, s : s + BS].to(acc)
                grad_x[m, k : k + BK, s : s + BS] = g * by - (block * part + rest)


@ts.kernel
def joined(
    sums: ts.Tensor[2, B, C, A],
    of_weight: ts.Tensor[C, W] | None,
    of_bias: ts.Tensor[C, W] | None,
    acc: Constant,
    BB: Constant = 16,
    BC: Constant = 64,
):
    """Add up the sums of channels over samples, in one order."""
    for c in ts.tile.grid((C, BC)):
        scaled, plain = ts.tile.zeros((BB, BC), acc), ts.tile.zeros((BB, BC), acc)
        for b in ts.tile.range(0, B, BB):
            if of_weight is not None:
                scaled = scaled + sums[0, b : b + BB, c : c + BC]
            if of_bias is not None:
                plain = plain + sums[1, b : b + BB, c : c + BC]
        if of_weight is not None:
            of_weight[c : c + BC] = ts.tile.sum(scaled, 0)
        if of_bias is not None:
            of_bias[c : c + BC] = ts.tile.sum(plain, 0)
