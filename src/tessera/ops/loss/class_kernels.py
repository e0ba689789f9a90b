"""Kernels of cross entropy: a row of logits is read once for its loss and once for its gradient."""

from __future__ import annotations

from typing import Any

import tessera as ts
from tessera.ops.annotations import F64, I64, Constant
from tessera.ops.approximations import exp_for

T = ts.dtype_var("T", ts.bf16, ts.f16, ts.f32, ts.f64)
L = ts.dtype_var("L", ts.bf16, ts.f16, ts.f32, ts.f64)
W = ts.dtype_var("W", ts.bf16, ts.f16, ts.f32, ts.f64)
I = ts.dtype_var("I", ts.i64, ts.i32)  # noqa: E741
S = ts.dtype_var("S", ts.f32, ts.f64)
M, V, G = ts.dims("M V G")

LOWEST = {"f32": -3.4e38, "f64": -1.79e308}
"""Where running maxima begin: finite numbers, so that no difference of infinities arises."""


@ts.function
def row_loss(
    t: Any,
    classes: Any,
    logit: Any,
    share: Any,
    ignore_index: Any,
    smoothing: Any,
    z_loss: Any,
    whole: Any,
    rest: Any,
    apart: Any,
    weights: Any,
):
    """Return the loss of a row, or of several, and the factor of softmax in its gradient.

    `whole` and `rest` add up to its logsumexp. With smoothing `apart` is the sum of what logits lie below `whole`,
    times their weights, and `weights` the sum of these.
    """
    acc = rest.dtype
    lse = whole + rest
    is_inside = (t >= 0) & (t < classes)
    own = (1.0 - smoothing).to(acc) * share
    loss = own * (rest - (logit - whole)) + z_loss.to(acc) * share * lse * lse
    factor = own + 2.0 * z_loss.to(acc) * share * lse
    if apart is not None:
        each = smoothing.to(acc) / classes
        loss = loss + each * (rest * weights + apart)
        factor = factor + each * weights
    lost = ts.tile.where(is_inside, loss, float("nan"))
    return ts.tile.where(t == ignore_index, 0.0, lost), ts.tile.where(is_inside, factor, float("nan"))


@ts.function
def put_down(losses: Any, stats: Any, m: Any, loss: Any, whole: Any, rest: Any, factor: Any, share: Any):
    """Store the loss of a row, and what is kept of it."""
    losses[m] = loss
    stats[0, m] = whole
    stats[1, m] = rest
    stats[2, m] = factor
    stats[3, m] = share


@ts.function
def centre_of(x: Any, m: Any, acc: Any) -> Any:
    """Return a finite number like the logits of a row: the first, 0 where that is none."""
    first = x[m, 0].to(acc)
    return ts.tile.where(ts.tile.isfinite(first), first, 0.0)


@ts.function
def share_of(t: Any, weight: Any, ignore_index: Any, acc: Any) -> Any:
    """Return the weight of a row of a class, 0 where it is ignored."""
    if weight is None:
        return (t != ignore_index).to(acc)
    return ts.tile.where(t == ignore_index, 0.0, weight[t].to(acc))


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
    acc: Constant,
):
    """Losses of rows that a program holds.

    `stats` keeps their maxima, what logsumexp adds to these, factors of softmax in gradients, and weights of rows.
    """
    for m in ts.tile.grid((M, 1)):
        t = target[m].to(ts.i64)
        logit, share = x[m, t].to(acc), share_of(t, weight, ignore_index, acc)
        row = x[m, :].to(acc)
        whole = ts.tile.max(row)
        rest = ts.tile.log(ts.tile.sum(exp_for(row - whole, x.dtype)))
        apart = None
        weights = None
        if smooths:
            apart = ts.tile.sum(whole - row if weight is None else (whole - row) * weight[:].to(acc))
            weights = V.to(acc) if weight is None else ts.tile.sum(weight[:].to(acc))
        loss, factor = row_loss(t, V, logit, share, ignore_index, smoothing, z_loss, whole, rest, apart, weights)
        put_down(losses, stats, m, loss, whole, rest, factor, share)


@ts.function
def by_pieces(x: Any, m: Any, weight: Any, centre: Any, smooths: Any, lowest: Any, acc: Any, B: Any, BS: Any):
    """Return a row's largest logit and the sum of its powers of e; with smoothing, sums over logits and weights.

    These are of what logits lie below `centre`, times their weights, and of the weights. Each place of a piece has its
    largest and its sum, of `BS` logits at a time.
    """
    width = x.shape[1]
    tops = ts.tile.full((B,), lowest, acc)
    sums = ts.tile.zeros((B,), acc)
    below = ts.tile.zeros((B * BS,), acc)
    weights = ts.tile.zeros((B * BS,), acc)
    for v in ts.tile.range(0, width, B * BS):
        row = ts.tile.load(x[m, v : v + B * BS], fill=-float("inf")).to(acc)
        block = row.reshape((B, BS))
        above = ts.tile.maximum(tops, ts.tile.max(block, 1))
        sums = sums * exp_for(tops - above, x.dtype) + ts.tile.sum(exp_for(block - above[:, None], x.dtype), 1)
        tops = above
        if smooths:
            down = ts.tile.where(v + ts.tile.arange(B * BS, dtype=ts.i64) < width, centre - row, 0.0)
            if weight is not None:
                some = weight[v : v + B * BS].to(acc)
                weights = weights + some
                down = down * some
            below = below + down
    whole = ts.tile.max(tops)
    total = ts.tile.sum(sums * exp_for(tops - whole, x.dtype))
    return whole, total, ts.tile.sum(below), ts.tile.sum(weights)


@ts.kernel
def forward_wide(
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
    B: Constant = 1024,
    BS: Constant = 8,
):
    """The same of longer rows, by pieces."""
    for m in ts.tile.grid((M, 1)):
        t = target[m].to(ts.i64)
        logit, share = x[m, t].to(acc), share_of(t, weight, ignore_index, acc)
        centre = centre_of(x, m, acc)
        whole, total, below, weights = by_pieces(x, m, weight, centre, smooths, lowest, acc, B, BS)
        rest = ts.tile.log(total)
        apart = None
        if smooths:
            weights = V.to(acc) if weight is None else weights
            apart = (whole - centre) * weights + below
        loss, factor = row_loss(t, V, logit, share, ignore_index, smoothing, z_loss, whole, rest, apart, weights)
        put_down(losses, stats, m, loss, whole, rest, factor, share)


@ts.kernel
def begun(
    x: ts.Tensor[M, V, T],
    target: ts.Tensor[M, I],
    state: ts.Tensor[5, M, S],
    first: I64,
    is_first: Constant,
    smooths: Constant,
    lowest: Constant,
    acc: Constant,
    B: Constant = 512,
    BS: Constant = 8,
):
    """Look at the logits of classes from `first` on.

    `state` keeps of each row its largest logit so far, the sum of its powers of e, the logit of its class, and with
    smoothing what is taken from logits, and the sum of what they lie below that.
    """
    for m in ts.tile.grid((M, 1)):
        centre = centre_of(x, m, acc) if is_first else state[3, m]
        whole, total, below, _ = by_pieces(x, m, None, centre, smooths, lowest, acc, B, BS)
        t = target[m].to(ts.i64) - first
        logit = x[m, t].to(acc)
        if not is_first:
            above = ts.tile.maximum(whole, state[0, m])
            total = total * ts.tile.exp(whole - above) + state[1, m] * ts.tile.exp(state[0, m] - above)
            whole = above
            logit = ts.tile.where((t >= 0) & (t < V), logit, state[2, m])
            below = below + state[4, m]
        state[0, m] = whole
        state[1, m] = total
        state[2, m] = logit
        state[3, m] = centre
        state[4, m] = below


@ts.kernel
def ended(
    state: ts.Tensor[5, M, S],
    target: ts.Tensor[M, I],
    losses: ts.Tensor[M, L],
    stats: ts.Tensor[4, M, S],
    classes: I64,
    ignore_index: I64,
    smoothing: F64,
    z_loss: F64,
    smooths: Constant,
    acc: Constant,
    BM: Constant = 256,
):
    """Losses of rows all of whose logits have been looked at."""
    for m in ts.tile.grid((M, BM)):
        t = target[m : m + BM].to(ts.i64)
        whole, rest = state[0, m : m + BM], ts.tile.log(state[1, m : m + BM])
        share = share_of(t, None, ignore_index, acc)
        apart = None
        if smooths:
            apart = (whole - state[3, m : m + BM]) * classes.to(acc) + state[4, m : m + BM]
        logit = state[2, m : m + BM]
        loss, factor = row_loss(
            t, classes, logit, share, ignore_index, smoothing, z_loss, whole, rest, apart, classes.to(acc)
        )
        losses[m : m + BM] = loss
        stats[0, m : m + BM] = whole
        stats[1, m : m + BM] = rest
        stats[2, m : m + BM] = factor
        stats[3, m : m + BM] = share


@ts.kernel
def backward(
    grad: ts.Tensor[G, L],
    whole: ts.Tensor[1, S] | None,
    x: ts.Tensor[M, V, T],
    target: ts.Tensor[M, I],
    weight: ts.Tensor[V, W] | None,
    stats: ts.Tensor[4, M, S],
    grad_x: ts.Tensor[M, V, T],
    first: I64,
    classes: I64,
    ignore_index: I64,
    smoothing: F64,
    smooths: Constant,
    reduced: Constant,
    acc: Constant,
    BM: Constant,
    BV: Constant,
):
    """Gradients of logits by that of each row's loss, or by that of their sum over `whole`; also in place.

    The logits are those of `V` of `classes` classes, from `first` on.
    """
    for m, v in ts.tile.grid((M, BM), (V, BV)):
        t = target[m : m + BM].to(ts.i64)[:, None]
        block = x[m : m + BM, v : v + BV].to(acc)
        top, rest = stats[0, m : m + BM][:, None], stats[1, m : m + BM][:, None]
        chances = exp_for(block - top - rest, x.dtype) * stats[2, m : m + BM][:, None]
        own = (1.0 - smoothing).to(acc) * stats[3, m : m + BM][:, None]
        place = t - (v + first)
        inside = ts.tile.where((place >= 0) & (place < BV), place, -1).to(ts.i32)  # compared in one word
        found = chances - ts.tile.where(ts.tile.arange(BV)[None, :] == inside, own, 0.0)
        if smooths:
            each = smoothing.to(acc) / classes
            found = found - (each if weight is None else (each * weight[v : v + BV].to(acc))[None, :])
        g = grad[0].to(acc) if reduced else grad[m : m + BM].to(acc)[:, None]
        found = found * (g if whole is None else g / whole[0])
        grad_x[m : m + BM, v : v + BV] = ts.tile.where(t == ignore_index, 0.0, found)
