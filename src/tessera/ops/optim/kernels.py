"""Kernels of optimizers: one pass over a parameter, its gradient and its states."""

from __future__ import annotations

from typing import Any

import tessera as ts
from tessera.ops.annotations import F64, I64, Constant

T = ts.dtype_var("T", ts.bf16, ts.f16, ts.f32, ts.f64)
G = ts.dtype_var("G", ts.bf16, ts.f16, ts.f32, ts.f64)
S = ts.dtype_var("S", ts.f32, ts.bf16, ts.f64)
W = ts.dtype_var("W", ts.f32, ts.f64)
M, N, P = ts.dims("M N P")


@ts.function
def shortened(x: Any, word: Any) -> Any:
    """Return numbers as bf16, up with a probability of their distance from the number below, by 16 random bits."""
    bits = ts.tile.bitcast(x.to(ts.f32), ts.u32)
    raised = ts.tile.bitcast((bits + (word & 0xFFFF)) & 0xFFFF0000, ts.f32)
    return ts.tile.where(ts.tile.isfinite(x), raised, x).to(ts.bf16)


@ts.function
def scaled(grad: Any, scale: Any, divisor: Any, acc: Any) -> Any:
    """Return a gradient over what a loss was multiplied by: a number, or the element of a tensor."""
    g = grad.to(acc)
    return g / divisor.to(acc) if scale is None else g / scale[0].to(acc)


@ts.function
def chosen(table: Any, place: Any, number: Any) -> Any:
    """Return a number of a step: from a table in memory where there is one."""
    return number if table is None else table[place]


@ts.function
def numbers(m: Any, n: Any, width: Any, shape: Any) -> Any:
    """Return the numbers of a tile's elements in the whole tensor."""
    rows = (m + ts.tile.arange(shape[0], dtype=ts.i64)) * width
    return rows[:, None] + (n + ts.tile.arange(shape[1], dtype=ts.i64))[None, :]


@ts.function
def stored(x: Any, seed: Any, ids: Any, stochastic: Any, place: Any) -> Any:
    """Return what is stored of numbers: as they are, or rounded at random where `stochastic` says so of their place."""
    if stochastic and stochastic[place]:
        return shortened(x, ts.tile.philox(seed, ids)[place])
    return x


@ts.function
def adamw_of(param: Any, grad: Any, means: Any, scale: Any, table: Any, by: Any, acc: Any) -> Any:
    """Return parameters and their two means after a step, for tiles of all four.

    `by` is what gradients are divided by, what decay leaves, what stays of both means, the corrected rate and root, and
    what is added to roots; a table in memory holds the same.
    """
    divisor, keep, of_mean, of_square, size, root, eps = by
    g = scaled(grad, scale, chosen(table, 0, divisor), acc)
    p = param.to(acc) * chosen(table, 1, keep).to(acc)
    first = means[0].to(acc)
    first = first + (1.0 - chosen(table, 2, of_mean)).to(acc) * (g - first)
    of_second = chosen(table, 3, of_square)
    second = means[1].to(acc) * of_second.to(acc) + (1.0 - of_second).to(acc) * g * g
    below = ts.tile.sqrt(second) / chosen(table, 5, root).to(acc) + chosen(table, 6, eps).to(acc)
    return p - chosen(table, 4, size).to(acc) * first / below, first, second


@ts.function
def lion_of(param: Any, grad: Any, mean: Any, scale: Any, table: Any, by: Any, acc: Any) -> Any:
    """Return parameters and their mean after a step; `by` and a table as for `adamw_of`, in the order of `lion`."""
    divisor, keep, of_step, of_mean, rate = by
    g = scaled(grad, scale, chosen(table, 0, divisor), acc)
    first = mean.to(acc)
    ahead, of_first = chosen(table, 2, of_step), chosen(table, 3, of_mean)
    way = ts.tile.sign(ahead.to(acc) * first + (1.0 - ahead).to(acc) * g)
    p = param.to(acc) * chosen(table, 1, keep).to(acc) - chosen(table, 4, rate).to(acc) * way
    return p, of_first.to(acc) * first + (1.0 - of_first).to(acc) * g


@ts.function
def sgd_of(
    param: Any, grad: Any, before: Any, scale: Any, table: Any, by: Any, nesterov: Any, is_first: Any, acc: Any
) -> Any:
    """Return parameters and their buffer after a step; `by` and a table as for `adamw_of`, in the order of `sgd`.

    `before` is the buffer before the step, None where there is none; in the first step it holds nothing yet.
    """
    divisor, decay, momentum, fresh, rate, kept = by
    p = param.to(acc)
    g = scaled(grad, scale, chosen(table, 0, divisor), acc)
    g = g + chosen(table, 1, decay).to(acc) * p
    b = g
    if before is not None:
        if not is_first:
            old, stays = before.to(acc), chosen(table, 5, kept).to(acc)
            if table is not None:
                old = ts.tile.where(stays == 0.0, 0.0, old)
            b = stays * old + chosen(table, 3, fresh).to(acc) * g
        g = g + chosen(table, 2, momentum).to(acc) * b if nesterov else b
    return p - chosen(table, 4, rate).to(acc) * g, b


@ts.kernel
def adamw(
    param: ts.Tensor[M, N, T],
    grad: ts.Tensor[M, N, G],
    mean: ts.Tensor[M, N, S],
    square: ts.Tensor[M, N, S],
    scale: ts.Tensor[1, W] | None,
    table: ts.Tensor[7, ts.f64] | None,
    divisor: F64,
    keep: F64,
    of_mean: F64,
    of_square: F64,
    size: F64,
    root: F64,
    eps: F64,
    seed: I64,
    stochastic: Constant,
    acc: Constant,
    BM: Constant = 1,
    BN: Constant = 1024,
):
    """One step of AdamW; `keep` is what decay leaves, `size` and `root` are the corrected rate and root.

    A table holds the numbers in their order, other than the seed.
    """
    for m, n in ts.tile.grid((M, BM), (N, BN)):
        by = divisor, keep, of_mean, of_square, size, root, eps
        old, g = param[m : m + BM, n : n + BN], grad[m : m + BM, n : n + BN]
        means = mean[m : m + BM, n : n + BN], square[m : m + BM, n : n + BN]
        p, first, second = adamw_of(old, g, means, scale, table, by, acc)
        ids = numbers(m, n, N, p.shape)
        param[m : m + BM, n : n + BN] = stored(p, seed, ids, stochastic, 0)
        mean[m : m + BM, n : n + BN] = stored(first, seed, ids, stochastic, 1)
        square[m : m + BM, n : n + BN] = stored(second, seed, ids, stochastic, 2)


@ts.kernel
def lion(
    param: ts.Tensor[M, N, T],
    grad: ts.Tensor[M, N, G],
    mean: ts.Tensor[M, N, S],
    scale: ts.Tensor[1, W] | None,
    table: ts.Tensor[5, ts.f64] | None,
    divisor: F64,
    keep: F64,
    of_step: F64,
    of_mean: F64,
    rate: F64,
    seed: I64,
    stochastic: Constant,
    acc: Constant,
    BM: Constant = 1,
    BN: Constant = 1024,
):
    """One step of Lion: by the sign of a mean that the gradient is part of. A table is as that of `adamw`."""
    for m, n in ts.tile.grid((M, BM), (N, BN)):
        by = divisor, keep, of_step, of_mean, rate
        old, g = param[m : m + BM, n : n + BN], grad[m : m + BM, n : n + BN]
        p, first = lion_of(old, g, mean[m : m + BM, n : n + BN], scale, table, by, acc)
        ids = numbers(m, n, N, p.shape)
        param[m : m + BM, n : n + BN] = stored(p, seed, ids, stochastic, 0)
        mean[m : m + BM, n : n + BN] = stored(first, seed, ids, stochastic, 1)


@ts.kernel
def sgd(
    param: ts.Tensor[M, N, T],
    grad: ts.Tensor[M, N, G],
    buffer: ts.Tensor[M, N, S] | None,
    scale: ts.Tensor[1, W] | None,
    table: ts.Tensor[6, ts.f64] | None,
    divisor: F64,
    decay: F64,
    momentum: F64,
    fresh: F64,
    rate: F64,
    kept: F64,
    seed: I64,
    nesterov: Constant,
    is_first: Constant,
    stochastic: Constant,
    acc: Constant,
    BM: Constant = 1,
    BN: Constant = 1024,
):
    """One step of gradient descent; `fresh` is what of the gradient enters the buffer, `kept` what of the buffer stays.

    A table is as that of `adamw`. Where nothing of a buffer stays, whatever it holds does not count.
    """
    for m, n in ts.tile.grid((M, BM), (N, BN)):
        by = divisor, decay, momentum, fresh, rate, kept
        old, g = param[m : m + BM, n : n + BN], grad[m : m + BM, n : n + BN]
        before = buffer[m : m + BM, n : n + BN] if buffer is not None else None
        p, b = sgd_of(old, g, before, scale, table, by, nesterov, is_first, acc)
        ids = numbers(m, n, N, p.shape)
        if buffer is not None:
            buffer[m : m + BM, n : n + BN] = stored(b, seed, ids, stochastic, 1)
        param[m : m + BM, n : n + BN] = stored(p, seed, ids, stochastic, 0)


@ts.kernel
def square_sums(
    x: ts.Tensor[M, N, T], parts: ts.Tensor[P, W], start: I64, acc: Constant, BN: Constant = 1024, STEPS: Constant = 16
):
    """Add up the squares of pieces of rows, each by one program; sums are put down from `start` on."""
    for m, n in ts.tile.grid((M, 1), (N, BN * STEPS)):
        total = ts.tile.zeros((BN,), acc)
        for i in ts.tile.range(n, min(n + BN * STEPS, N), BN):
            some = x[m, i : i + BN].to(acc)
            total = total + some * some
        parts[start + m * ts.cdiv(N, BN * STEPS) + n // (BN * STEPS)] = ts.tile.sum(total)


@ts.kernel
def norm(parts: ts.Tensor[P, W], out: ts.Tensor[1, W], BP: Constant = 1024):
    """Return the root of all sums, which are added up in f64 and in one order."""
    for _ in ts.tile.grid((1, 1)):
        total = ts.tile.zeros((BP,), ts.f64)
        for p in ts.tile.range(0, P, BP):
            total = total + parts[p : p + BP].to(ts.f64)
        out[0] = ts.tile.sqrt(ts.tile.sum(total))


@ts.kernel
def clip(
    x: ts.Tensor[M, N, T], total: ts.Tensor[1, W], most: F64, acc: Constant, BM: Constant = 1, BN: Constant = 1024
):
    """Shrink elements by what the norm is too large by."""
    for m, n in ts.tile.grid((M, BM), (N, BN)):
        factor = ts.tile.minimum(most.to(acc) / (total[0] + 1e-6), 1.0)
        if ~(factor >= 1.0):
            x[m : m + BM, n : n + BN] = x[m : m + BM, n : n + BN].to(acc) * factor
