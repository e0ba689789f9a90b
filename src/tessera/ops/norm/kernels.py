"""Kernels of norms over rows: what is normalised is read once, and statistics are kept for gradients."""

from __future__ import annotations

from typing import Any

import tessera as ts
from tessera.ops.annotations import F32, F64, I64, Constant
from tessera.ops.random.masks import dropped

T = ts.dtype_var("T", ts.bf16, ts.f16, ts.f32, ts.f64)
W = ts.dtype_var("W", ts.bf16, ts.f16, ts.f32, ts.f64)
S = ts.dtype_var("S", ts.f32, ts.f64)
Q = ts.dtype_var("Q", ts.fp8_e4m3, ts.fp8_e5m2)
K, M, N, P = ts.dims("K M N P")


@ts.function
def kept_rows(block: Any, m: Any, p: Any, seed: Any) -> Any:
    """Return rows from `m` on after dropout; the number of an element is its place in the whole array."""
    count, width = block.shape
    first = (m + ts.tile.arange(count, dtype=ts.i64)) * width
    return dropped(block, first, p, seed, width % 4 == 0)


@ts.function
def kept(x: Any, row: Any, p: Any, seed: Any) -> Any:
    """Return a row after dropout."""
    return kept_rows(x[None, :], row, p, seed).reshape(x.shape)


@ts.function
def added(x: Any, m: Any, input_bias: Any, residual: Any, p: Any, seed: Any, drops: Any, acc: Any) -> Any:
    """Return the row of `residual + dropout(x + input_bias)`."""
    row = x[m, :].to(acc)
    if input_bias is not None:
        row = row + input_bias[:].to(acc)
    if drops:
        row = kept(row, m, p, seed)
    return row if residual is None else row + residual[m, :].to(acc)


@ts.function
def weighted(row: Any, weight: Any, bias: Any, acc: Any) -> Any:
    """Return a row times weights, plus a bias."""
    if weight is not None:
        row = row * weight[:].to(acc)
    return row if bias is None else row + bias[:].to(acc)


@ts.kernel
def forward(
    x: ts.Tensor[M, N, T],
    input_bias: ts.Tensor[N, W] | None,
    residual: ts.Tensor[M, N, T] | None,
    weight: ts.Tensor[N, W] | None,
    bias: ts.Tensor[N, W] | None,
    out: ts.Tensor[M, N, T],
    summed: ts.Tensor[M, N, T] | None,
    mean: ts.Tensor[M, S] | None,
    rstd: ts.Tensor[M, S] | None,
    eps: F64,
    p: F32,
    seed: I64,
    centred: Constant,
    drops: Constant,
    acc: Constant,
):
    """Normalise the rows of `residual + dropout(x + input_bias)`."""
    for m in ts.tile.grid((M, 1)):
        row = added(x, m, input_bias, residual, p, seed, drops, acc)
        if summed is not None:
            summed[m, :] = row
        if centred:
            middle = ts.tile.sum(row) / N
            row = row - middle
            if mean is not None:
                mean[m] = middle
        scale = ts.tile.rsqrt(ts.tile.sum(row * row) / N + eps.to(acc))
        if rstd is not None:
            rstd[m] = scale
        out[m, :] = weighted(row * scale, weight, bias, acc)


@ts.kernel
def forward_quantised(
    x: ts.Tensor[M, N, T],
    input_bias: ts.Tensor[N, W] | None,
    residual: ts.Tensor[M, N, T] | None,
    weight: ts.Tensor[N, W] | None,
    bias: ts.Tensor[N, W] | None,
    out: ts.Tensor[M, N, Q],
    scales: ts.Tensor[M, K, ts.f32],
    summed: ts.Tensor[M, N, T] | None,
    eps: F64,
    p: F32,
    seed: I64,
    centred: Constant,
    drops: Constant,
    block: Constant,
    largest: Constant,
    acc: Constant,
):
    """The same, with results as 8-bit numbers times a scale: of each row, or of each `block` elements of it."""
    for m in ts.tile.grid((M, 1)):
        row = added(x, m, input_bias, residual, p, seed, drops, acc)
        if summed is not None:
            summed[m, :] = row
        if centred:
            row = row - ts.tile.sum(row) / N
        row = weighted(row * ts.tile.rsqrt(ts.tile.sum(row * row) / N + eps.to(acc)), weight, bias, acc)
        parts = row.reshape((N // block, block))
        scale = (ts.tile.max(ts.tile.abs(parts), 1) / largest).to(ts.f32)
        scale = ts.tile.where(scale == 0, 1.0, scale)
        scales[m, :] = scale
        out[m, :] = (parts / scale.to(acc)[:, None]).reshape((N,))


@ts.function
def row_gradient(g: Any, normal: Any, scale: Any, is_centred: Any) -> Any:
    """Return the gradient of a row by that of its normalised form, which its weights have multiplied."""
    rest = g - normal * (ts.tile.sum(g * normal) / g.shape[0])
    if is_centred:
        rest = rest - ts.tile.sum(g) / g.shape[0]
    return rest * scale


@ts.function
def normalised(x: Any, m: Any, mean: Any, rstd: Any, acc: Any) -> Any:
    """Return a row as it was normalised, without weights."""
    row = x[m, :].to(acc)
    if mean is not None:
        row = row - mean[m]
    return row * rstd[m]


@ts.function
def passed_on(rest: Any, later: Any, grad_residual: Any, m: Any, p: Any, seed: Any, drops: Any, acc: Any) -> Any:
    """Return a row's gradient by that of what was normalised, with what comes from there; the residual has it, too."""
    if later is not None:
        rest = rest + later.to(acc)
    if grad_residual is not None:
        grad_residual[m, :] = rest
    return kept(rest, m, p, seed) if drops else rest


@ts.kernel
def backward(
    grad: ts.Tensor[M, N, T],
    grad_summed: ts.Tensor[M, N, T] | None,
    x: ts.Tensor[M, N, T],
    weight: ts.Tensor[N, W] | None,
    mean: ts.Tensor[M, S] | None,
    rstd: ts.Tensor[M, S],
    grad_x: ts.Tensor[M, N, T],
    grad_residual: ts.Tensor[M, N, T] | None,
    p: F32,
    seed: I64,
    drops: Constant,
    acc: Constant,
):
    """Gradients of rows: (g - [mean of g, if centred] - n·mean(g·n))·rstd, n = (x - mean)·rstd, g = grad·weight."""
    for m in ts.tile.grid((M, 1)):
        g = weighted(grad[m, :].to(acc), weight, None, acc)
        rest = row_gradient(g, normalised(x, m, mean, rstd, acc), rstd[m], mean is not None)
        later = grad_summed[m, :] if grad_summed is not None else None
        grad_x[m, :] = passed_on(rest, later, grad_residual, m, p, seed, drops, acc)


@ts.function
def normalised_rows(block: Any, m: Any, mean: Any, rstd: Any) -> Any:
    """Return rows from `m` on as they were normalised, without weights."""
    if mean is not None:
        block = block - mean[m : m + block.shape[0]][:, None]
    return block * rstd[m : m + block.shape[0]][:, None]


@ts.function
def rows_gradient(g: Any, normal: Any, scale: Any, is_centred: Any) -> Any:
    """Return the gradients of several rows, as `row_gradient` does of one."""
    rest = g - normal * (ts.tile.sum(g * normal, 1, keepdims=True) / g.shape[1])
    if is_centred:
        rest = rest - ts.tile.sum(g, 1, keepdims=True) / g.shape[1]
    return rest * scale


@ts.function
def put_down(parts: Any, part: Any, which: Any, total: Any, wanted: Any):
    """Store the sum over rows that is wanted."""
    if wanted[which]:
        parts[which, part, :] = ts.tile.sum(total, 0)


@ts.kernel
def backward_with_sums(
    grad: ts.Tensor[M, N, T],
    grad_summed: ts.Tensor[M, N, T] | None,
    x: ts.Tensor[M, N, T],
    weight: ts.Tensor[N, W] | None,
    mean: ts.Tensor[M, S] | None,
    rstd: ts.Tensor[M, S],
    grad_x: ts.Tensor[M, N, T],
    grad_residual: ts.Tensor[M, N, T] | None,
    parts: ts.Tensor[3, P, N, S],
    rows: I64,
    p: F32,
    seed: I64,
    drops: Constant,
    wanted: Constant,
    ahead: Constant,
    acc: Constant,
    BM: Constant,
):
    """The same for `rows` rows of each of P programs, `BM` at a time, which divides them, and sums over these.

    `wanted` says of which of weight, bias and input_bias; `ahead` loads rows while those before them are computed.
    """
    for part in ts.tile.grid((P, 1)):
        of_weight = ts.tile.zeros((BM, N), acc)
        of_bias = ts.tile.zeros((BM, N), acc)
        of_input_bias = ts.tile.zeros((BM, N), acc)
        first = part * rows
        g_next = grad[first : first + BM, :]
        x_next = x[first : first + BM, :]
        for m in ts.tile.range(first, min(first + rows, M), BM):
            if ahead:
                g, normal = g_next.to(acc), x_next.to(acc)
                g_next = grad[m + BM : m + 2 * BM, :]
                x_next = x[m + BM : m + 2 * BM, :]
            else:
                g, normal = grad[m : m + BM, :].to(acc), x[m : m + BM, :].to(acc)
            normal = normalised_rows(normal, m, mean, rstd)
            if wanted[0]:
                of_weight = of_weight + g * normal
            if wanted[1]:
                of_bias = of_bias + g
            if weight is not None:
                g = g * weight[:].to(acc)
            rest = rows_gradient(g, normal, rstd[m : m + BM][:, None], mean is not None)
            if grad_summed is not None:
                rest = rest + grad_summed[m : m + BM, :].to(acc)
            if grad_residual is not None:
                grad_residual[m : m + BM, :] = rest
            rest = kept_rows(rest, m, p, seed) if drops else rest
            grad_x[m : m + BM, :] = rest
            if wanted[2]:
                of_input_bias = of_input_bias + rest
        put_down(parts, part, 0, of_weight, wanted)
        put_down(parts, part, 1, of_bias, wanted)
        put_down(parts, part, 2, of_input_bias, wanted)


@ts.function
def both(a: Any, b: Any, x: Any, y: Any) -> Any:
    """Add two numbers to two others."""
    return a + x, b + y


@ts.function
def row_sums(g: Any, row: Any, is_centred: Any) -> Any:
    """Return the sums of a row's products and, where it is centred, of its gradients."""
    if is_centred:
        return ts.tile.reduce((g * row, g), 0, both)
    return ts.tile.sum(g * row), 0.0


@ts.function
def staged(row: Any, at: Any, mean: Any, acc: Any) -> Any:
    """Read a row from shared memory, less its mean where it is centred."""
    return row.to(acc) if mean is None else row.to(acc) - mean[at]


@ts.kernel
def backward_through_shared(
    grad: ts.Tensor[M, N, T],
    grad_summed: ts.Tensor[M, N, T] | None,
    x: ts.Tensor[M, N, T],
    weight: ts.Tensor[N, W] | None,
    mean: ts.Tensor[M, S] | None,
    rstd: ts.Tensor[M, S],
    grad_x: ts.Tensor[M, N, T],
    grad_residual: ts.Tensor[M, N, T] | None,
    parts: ts.Tensor[3, P, N, S],
    rows: I64,
    p: F32,
    seed: I64,
    drops: Constant,
    wanted: Constant,
    acc: Constant,
    kind: Constant,
    stages: Constant,
):
    """The same, a row at a time, for rows that leave no registers for those behind them: these wait in shared memory.

    So does the row itself, which is read again for what follows from its sums. There is room for `stages` rows.
    """
    for part in ts.tile.grid((P, 1)):
        grads = ts.tile.alloc_shared((stages, N), kind)
        inputs = ts.tile.alloc_shared((stages, N), kind)
        of_weight = ts.tile.zeros((N,), acc)
        of_bias = ts.tile.zeros((N,), acc)
        of_input_bias = ts.tile.zeros((N,), acc)
        first = part * rows
        end = min(first + rows, M)
        for ahead in ts.tile.static_range(stages - 1):
            ts.tile.cp_async(grads[ahead], grad[first + ahead, :])
            ts.tile.cp_async(inputs[ahead], x[first + ahead, :])
            ts.tile.commit_group()
        slot, free = 0, stages - 1
        for m in ts.tile.range(first, end):
            later = grad_summed[m, :] if grad_summed is not None else None
            ts.tile.cp_async(grads[free], grad[m + (stages - 1), :])
            ts.tile.cp_async(inputs[free], x[m + (stages - 1), :])
            ts.tile.commit_group()
            ts.tile.wait_group(stages - 1)
            ts.tile.barrier()
            g = weighted(staged(grads[slot], m, None, acc), weight, None, acc)
            product, middle = row_sums(g, staged(inputs[slot], m, mean, acc), mean is not None)
            g = staged(grads[slot], m, None, acc)
            normal = staged(inputs[slot], m, mean, acc) * rstd[m]
            if wanted[0]:
                of_weight = of_weight + g * normal
            if wanted[1]:
                of_bias = of_bias + g
            g = weighted(g, weight, None, acc)
            rest = g - normal * (product / N * rstd[m])
            if mean is not None:
                rest = rest - middle / N
            rest = passed_on(rest * rstd[m], later, grad_residual, m, p, seed, drops, acc)
            grad_x[m, :] = rest
            if wanted[2]:
                of_input_bias = of_input_bias + rest
            ts.tile.barrier()
            free = slot
            slot = (slot + 1) % stages
        if wanted[0]:
            parts[0, part, :] = of_weight
        if wanted[1]:
            parts[1, part, :] = of_bias
        if wanted[2]:
            parts[2, part, :] = of_input_bias


@ts.kernel
def sums_by_columns(
    grad: ts.Tensor[M, N, T],
    x: ts.Tensor[M, N, T],
    mean: ts.Tensor[M, S] | None,
    rstd: ts.Tensor[M, S],
    grad_x: ts.Tensor[M, N, T],
    parts: ts.Tensor[3, P, N, S],
    rows: I64,
    wanted: Constant,
    acc: Constant,
    BM: Constant = 16,
    BN: Constant = 128,
):
    """The sums alone, for rows that leave a program no room for them."""
    for part, n in ts.tile.grid((P, 1), (N, BN)):
        of_weight = ts.tile.zeros((BM, BN), acc)
        of_bias = ts.tile.zeros((BM, BN), acc)
        of_input_bias = ts.tile.zeros((BM, BN), acc)
        end = min((part + 1) * rows, M)
        for m in ts.tile.range(part * rows, end, BM):
            inside = (m + ts.tile.arange(BM, dtype=ts.i64) < end)[:, None]
            g = ts.tile.where(inside, grad[m : m + BM, n : n + BN].to(acc), 0.0)
            if wanted[0]:
                row = x[m : m + BM, n : n + BN].to(acc)
                if mean is not None:
                    row = row - mean[m : m + BM][:, None]
                of_weight = of_weight + g * row * rstd[m : m + BM][:, None]
            if wanted[1]:
                of_bias = of_bias + g
            if wanted[2]:
                of_input_bias = of_input_bias + ts.tile.where(inside, grad_x[m : m + BM, n : n + BN].to(acc), 0.0)
        if wanted[0]:
            parts[0, part, n : n + BN] = ts.tile.sum(of_weight, 0)
        if wanted[1]:
            parts[1, part, n : n + BN] = ts.tile.sum(of_bias, 0)
        if wanted[2]:
            parts[2, part, n : n + BN] = ts.tile.sum(of_input_bias, 0)


@ts.function
def total_of(parts: Any, which: Any, n: Any, acc: Any, BP: Any, BN: Any) -> Any:
    """Return the sums over programs of some columns."""
    total = ts.tile.zeros((BP, BN), acc)
    for p in ts.tile.range(0, parts.shape[1], BP):
        total = total + parts[which, p : p + BP, n : n + BN]
    return ts.tile.sum(total, 0)


@ts.kernel
def column_sums(
    parts: ts.Tensor[3, P, N, S],
    of_weight: ts.Tensor[N, W] | None,
    of_bias: ts.Tensor[N, W] | None,
    of_input_bias: ts.Tensor[N, W] | None,
    acc: Constant,
    BP: Constant = 16,
    BN: Constant = 64,
):
    """Add up the sums of programs in one order."""
    for which, n in ts.tile.grid((3, 1), (N, BN)):
        if of_weight is not None:
            if which == 0:
                of_weight[n : n + BN] = total_of(parts, 0, n, acc, BP, BN)
        if of_bias is not None:
            if which == 1:
                of_bias[n : n + BN] = total_of(parts, 1, n, acc, BP, BN)
        if of_input_bias is not None:
            if which == 2:
                of_input_bias[n : n + BN] = total_of(parts, 2, n, acc, BP, BN)
