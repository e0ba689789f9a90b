"""Kernels of cross entropy with probabilities of classes: both are read once for losses and once for gradients."""

from __future__ import annotations

from typing import Any

import tessera as ts
from tessera.ops.annotations import F64, Constant
from tessera.ops.approximations import exp_for
from tessera.ops.loss.class_kernels import by_pieces

T = ts.dtype_var("T", ts.bf16, ts.f16, ts.f32, ts.f64)
Y = ts.dtype_var("Y", ts.bf16, ts.f16, ts.f32, ts.f64)
L = ts.dtype_var("L", ts.bf16, ts.f16, ts.f32, ts.f64)
W = ts.dtype_var("W", ts.bf16, ts.f16, ts.f32, ts.f64)
S = ts.dtype_var("S", ts.f32, ts.f64)
M, V, G = ts.dims("M V G")


@ts.function
def times(found: Any, weights: Any) -> Any:
    """Return numbers of classes times the weights of these, if there are any."""
    return found if weights is None else found * weights


@ts.function
def smoothed(p: Any, weights: Any, classes: Any, smoothing: Any, smooths: Any) -> Any:
    """Return the shares of classes in a loss, by their probabilities."""
    if smooths:
        p = p * (1.0 - smoothing).to(p.dtype) + smoothing.to(p.dtype) / classes
    return times(p, weights)


@ts.function
def put_down(
    losses: Any, stats: Any, m: Any, top: Any, rest: Any, shares: Any, below: Any, certain: Any, z_loss: Any
) -> None:
    """Store the loss of a row, and what is kept of it.

    `top` and `rest` add up to its logsumexp, `shares` is the sum of its classes' shares, `below` of what their logits
    lie below `top` times these, and `certain` of the weights of classes times their probabilities.
    """
    lse, z = top + rest, z_loss.to(rest.dtype) * certain
    losses[m] = rest * shares + below + z * lse * lse
    stats[0, m] = top
    stats[1, m] = rest
    stats[2, m] = shares + 2.0 * z * lse


@ts.kernel
def forward(
    x: ts.Tensor[M, V, T],
    target: ts.Tensor[M, V, Y],
    weight: ts.Tensor[V, W] | None,
    losses: ts.Tensor[M, L],
    stats: ts.Tensor[3, M, S],
    smoothing: F64,
    z_loss: F64,
    smooths: Constant,
    acc: Constant,
):
    """Losses of rows that a program holds.

    `stats` keeps their maxima, what logsumexp adds to these, and factors of softmax in gradients.
    """
    for m in ts.tile.grid((M, 1)):
        row, p = x[m, :].to(acc), target[m, :].to(acc)
        weights = None if weight is None else weight[:].to(acc)
        top = ts.tile.max(row)
        rest = ts.tile.log(ts.tile.sum(exp_for(row - top, x.dtype)))
        q = smoothed(p, weights, V, smoothing, smooths)
        shares, below = ts.tile.sum(q), ts.tile.sum(q * (top - row))
        certain = ts.tile.sum(times(p, weights)) if smooths else shares
        put_down(losses, stats, m, top, rest, shares, below, certain, z_loss)


@ts.kernel
def forward_wide(
    x: ts.Tensor[M, V, T],
    target: ts.Tensor[M, V, Y],
    weight: ts.Tensor[V, W] | None,
    losses: ts.Tensor[M, L],
    stats: ts.Tensor[3, M, S],
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
        top, total, _, _ = by_pieces(x, m, None, 0.0, False, lowest, acc, B, BS)
        shares = ts.tile.zeros((B,), acc)
        below = ts.tile.zeros((B,), acc)
        certain = ts.tile.zeros((B,), acc)
        for v in ts.tile.range(0, V, B):
            p = target[m, v : v + B].to(acc)
            weights = None if weight is None else weight[v : v + B].to(acc)
            inside = v + ts.tile.arange(B, dtype=ts.i64) < V
            q = ts.tile.where(inside, smoothed(p, weights, V, smoothing, smooths), 0.0)
            shares = shares + q
            below = below + ts.tile.where(inside, q * (top - x[m, v : v + B].to(acc)), 0.0)
            certain = certain + (times(p, weights) if smooths else q)
        whole, under, sure = ts.tile.sum(shares), ts.tile.sum(below), ts.tile.sum(certain)
        put_down(losses, stats, m, top, ts.tile.log(total), whole, under, sure, z_loss)


@ts.kernel
def backward(
    grad: ts.Tensor[G, L],
    x: ts.Tensor[M, V, T],
    target: ts.Tensor[M, V, Y],
    weight: ts.Tensor[V, W] | None,
    stats: ts.Tensor[3, M, S],
    grad_x: ts.Tensor[M, V, T] | None,
    grad_target: ts.Tensor[M, V, Y] | None,
    smoothing: F64,
    z_loss: F64,
    scale: F64,
    smooths: Constant,
    reduced: Constant,
    acc: Constant,
    BM: Constant,
    BV: Constant,
):
    """Gradients of logits and of probabilities by that of each row's loss, or by that of their sum times `scale`."""
    for m, v in ts.tile.grid((M, BM), (V, BV)):
        row = x[m : m + BM, v : v + BV].to(acc)
        top, rest = stats[0, m : m + BM][:, None], stats[1, m : m + BM][:, None]
        weights = None if weight is None else weight[v : v + BV].to(acc)[None, :]
        g = (grad[0].to(acc) if reduced else grad[m : m + BM].to(acc)[:, None]) * scale.to(acc)
        if grad_x is not None:
            q = smoothed(target[m : m + BM, v : v + BV].to(acc), weights, V, smoothing, smooths)
            chances = exp_for(row - top - rest, x.dtype)
            grad_x[m : m + BM, v : v + BV] = g * (chances * stats[2, m : m + BM][:, None] - q)
        if grad_target is not None:
            lse = top + rest
            found = (1.0 - smoothing).to(acc) * (rest - (row - top)) + z_loss.to(acc) * lse * lse
            grad_target[m : m + BM, v : v + BV] = g * times(found, weights)
