"""Kernels of cross entropy: a row of logits is read once for its loss and once for its gradient."""

from __future__ import annotations

from typing import Any

import tessera as ts
from tessera.ops.annotations import F64, I64, Constant

T = ts.dtype_var("T", ts.bf16, ts.f16, ts.f32, ts.f64)
L = ts.dtype_var("L", ts.bf16, ts.f16, ts.f32, ts.f64)
W = ts.dtype_var("W", ts.bf16, ts.f16, ts.f32, ts.f64)
I = ts.dtype_var("I", ts.i64, ts.i32)  # noqa: E741
S = ts.dtype_var("S", ts.f32, ts.f64)
M, V, G = ts.dims("M V G")

LOWEST = {"f32": -3.4e38, "f64": -1.79e308}
"""Where running maxima begin: finite numbers, so that no difference of infinities arises."""


@ts.kernel
def forward(
    x: ts.Tensor[M, V, T],
    target: ts.Tensor[M, I],
    weight: ts.Tensor[V, W] | None,
    losses: ts.Tensor[M, L],
    stats: ts.Tensor[4, M, S],
    ignore_index: I64,
    smoothing: F64,
    z_loss: F64,
    smooths: Constant,
    lowest: Constant,
    acc: Constant,
    B: Constant,
):
    """Losses of rows.

    `stats` keeps their maxima, what logsumexp adds to these, factors of softmax in gradients, and weights of rows.
    """
    for m in ts.tile.grid((M, 1)):
        first = x[m, 0].to(acc)
        first = ts.tile.where(ts.tile.isfinite(first), first, 0.0)
        most = ts.tile.full((B,), lowest, acc)
        added = ts.tile.zeros((B,), acc)
        logits = ts.tile.zeros((B,), acc)
        weights = ts.tile.zeros((B,), acc)
        for v in ts.tile.range(0, V, B):
            row = ts.tile.load(x[m, v : v + B], fill=-float("inf")).to(acc)
            # One exponential: of the distance of the element and the maximum, whichever is larger.
            near = ts.tile.exp(-ts.tile.abs(row - most))
            added = ts.tile.where(row > most, added * near + 1.0, added + near)
            most = ts.tile.maximum(most, row)
            if smooths:
                row = ts.tile.where(v + ts.tile.arange(B, dtype=ts.i64) < V, row - first, 0.0)
                if weight is not None:
                    some = weight[v : v + B].to(acc)
                    weights = weights + some
                    row = row * some
                logits = logits + row
        whole = ts.tile.max(most)
        rest = ts.tile.log(ts.tile.sum(added * ts.tile.exp(most - whole)))
        lse = whole + rest
        t = target[m].to(ts.i64)
        is_inside = (t >= 0) & (t < V)
        share = (t != ignore_index).to(acc)
        if weight is not None:
            share = ts.tile.where(t == ignore_index, 0.0, weight[t].to(acc))
        own = (1.0 - smoothing).to(acc) * share
        loss = own * (rest - (x[m, t].to(acc) - whole)) + z_loss.to(acc) * share * lse * lse
        factor = own + 2.0 * z_loss.to(acc) * share * lse
        if smooths:
            each = smoothing.to(acc) / V
            total = ts.tile.sum(weights) if weight is not None else V.to(acc)
            loss = loss + each * ((rest + (whole - first)) * total - ts.tile.sum(logits))
            factor = factor + each * total
        lost = ts.tile.where(is_inside, loss, float("nan"))
        losses[m] = ts.tile.where(t == ignore_index, 0.0, lost)
        stats[0, m] = whole
        stats[1, m] = rest
        stats[2, m] = ts.tile.where(is_inside, factor, float("nan"))
        stats[3, m] = share


@ts.kernel
def backward(
    grad: ts.Tensor[G, L] | None,
    whole: ts.Tensor[1, S] | None,
    x: ts.Tensor[M, V, T],
    target: ts.Tensor[M, I],
    weight: ts.Tensor[V, W] | None,
    stats: ts.Tensor[4, M, S],
    grad_x: ts.Tensor[M, V, T],
    ignore_index: I64,
    smoothing: F64,
    smooths: Constant,
    reduced: Constant,
    acc: Constant,
    B: Constant,
):
    """Gradients of logits by that of each row's loss, or by that of their sum over `whole`, or by 1; also in place."""
    for m, v in ts.tile.grid((M, 1), (V, B)):
        t = target[m].to(ts.i64)
        chances = ts.tile.exp(x[m, v : v + B].to(acc) - stats[0, m] - stats[1, m]) * stats[2, m]
        own = (1.0 - smoothing).to(acc) * stats[3, m]
        found = chances - ts.tile.where(v + ts.tile.arange(B, dtype=ts.i64) == t, own, 0.0)
        if smooths:
            each = smoothing.to(acc) / V
            found = found - (each if weight is None else each * weight[v : v + B].to(acc))
        if grad is not None:
            g = (grad[0] if reduced else grad[m]).to(acc)
            found = found * (g if whole is None else g / whole[0])
        grad_x[m, v : v + B] = ts.tile.where(t == ignore_index, 0.0, found)


@ts.kernel
def scaled(
    x: ts.Tensor[M, V, T],
    grad: ts.Tensor[1, L],
    whole: ts.Tensor[1, S] | None,
    out: ts.Tensor[M, V, W],
    acc: Constant,
    B: Constant = 1024,
):
    """Multiply what the gradient of a sum was by that of the result, which divided the sum by `whole`."""
    for m, v in ts.tile.grid((M, 1), (V, B)):
        g = grad[0].to(acc)
        block: Any = x[m, v : v + B].to(acc)
        # No row had a part in it where they all were ignored: 0 over 0.
        out[m, v : v + B] = ts.tile.where(block == 0, 0.0, block * (g if whole is None else g / whole[0]))
