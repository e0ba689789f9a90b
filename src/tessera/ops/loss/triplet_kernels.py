"""Kernels of losses of triplets: distances of vectors; rows in blocks of columns.

`power` says of a norm's exponent `p` what kernels have for themselves: 0, 1, 2,
`max` for an infinite one, None for others.
"""

from __future__ import annotations

from typing import Any

import tessera as ts
from tessera.ops.annotations import F64, Constant
from tessera.ops.signs import slope_of_size

T = ts.dtype_var("T", ts.bf16, ts.f16, ts.f32, ts.f64)
L = ts.dtype_var("L", ts.bf16, ts.f16, ts.f32, ts.f64)
S = ts.dtype_var("S", ts.f32, ts.f64)
M, D, G, K = ts.dims("M D G K")


@ts.function
def powers(u: Any, p: Any, power: Any) -> Any:
    """Return what is added up for a norm, or what it is the largest of."""
    if power == 1 or power == "max":
        return ts.tile.abs(u)
    if power == 2:
        return u * u
    if power == 0:
        return ts.tile.where(u == 0.0, 0.0, 1.0)
    return ts.tile.where(u == 0.0, 0.0, ts.tile.pow(ts.tile.abs(u), p))


@ts.function
def joined(found: Any, more: Any, power: Any) -> Any:
    """Return what two parts of rows come to."""
    return ts.tile.maximum(found, more) if power == "max" else found + more


@ts.function
def root(total: Any, p: Any) -> Any:
    """Return a power's root."""
    return ts.tile.where(total == 0.0, 0.0, ts.tile.pow(total, 1.0 / p))


@ts.function
def norm_of(found: Any, p: Any, power: Any) -> Any:
    """Return the norms of rows."""
    if power == "max":
        return ts.tile.max(found, 1)
    total = ts.tile.sum(found, 1)
    if power == 0 or power == 1:
        return total
    if power == 2:
        return ts.tile.sqrt(total)
    return root(total, p)


@ts.function
def is_largest(u: Any, norm: Any) -> Any:
    """Return which differences are as large as the largest; one that is NaN counts."""
    return (ts.tile.abs(u) == norm) | ts.tile.isnan(u)


@ts.function
def how_many(u: Any, norm: Any, inside: Any) -> Any:
    """Return how many differences of rows are as large as the largest."""
    found: Any = is_largest(u, norm[:, None])
    return ts.tile.sum(ts.tile.where(found if inside is None else found & inside, 1.0, 0.0).to(norm.dtype), 1)


@ts.function
def nearer(to_negative: Any, between: Any) -> Any:
    """Return the smaller one of two distances, NaN where either is."""
    return ts.tile.where(ts.tile.isnan(between) | (between < to_negative), between, to_negative)


@ts.function
def kept(u: Any, stats: Any, i: Any, m: Any, p: Any, power: Any, first: Any, BM: Any) -> Any:
    """Return the distances of rows by their differences, and keep them at place `i`."""
    norm = norm_of(powers(u, p, power), p, power)
    stats[i, m : m + BM] = norm
    if power == "max":
        stats[first + i, m : m + BM] = how_many(u, norm, None)
    return norm


@ts.function
def of_rows(
    anchor: Any,
    positive: Any,
    negative: Any,
    stats: Any,
    m: Any,
    p: Any,
    eps: Any,
    power: Any,
    swap: Any,
    first: Any,
    BM: Any,
) -> Any:
    """Return how far positives and negatives are, of rows that are taken whole."""
    acc = p.dtype
    here, close, away = (
        anchor[m : m + BM, :].to(acc),
        positive[m : m + BM, :].to(acc),
        negative[m : m + BM, :].to(acc),
    )
    to_positive = kept(here - close + eps, stats, 0, m, p, power, first, BM)
    to_negative = kept(here - away + eps, stats, 1, m, p, power, first, BM)
    if swap:
        to_negative = nearer(to_negative, kept(close - away + eps, stats, 2, m, p, power, first, BM))
    return to_positive, to_negative


@ts.function
def apart(left: Any, right: Any, m: Any, d: Any, eps: Any, BM: Any, B: Any) -> Any:
    """Return the differences of a block of two arrays."""
    return left[m : m + BM, d : d + B].to(eps.dtype) - right[m : m + BM, d : d + B].to(eps.dtype) + eps


@ts.function
def is_inside(d: Any, width: Any, B: Any) -> Any:
    """Return which columns of a block are there."""
    return (d + ts.tile.arange(B, dtype=ts.i64) < width)[None, :]


@ts.function
def distance(left: Any, right: Any, m: Any, p: Any, eps: Any, power: Any, BM: Any, B: Any) -> Any:
    """Return the distances of rows that are taken by blocks."""
    width = left.shape[1]
    total = ts.tile.zeros((BM, B), p.dtype)
    for d in ts.tile.range(0, width, B):
        found = powers(apart(left, right, m, d, eps, BM, B), p, power)
        total = joined(total, ts.tile.where(is_inside(d, width, B), found, 0.0), power)
    return norm_of(total, p, power)


@ts.function
def largest(left: Any, right: Any, norm: Any, m: Any, eps: Any, BM: Any, B: Any) -> Any:
    """Return how many differences are as large as the largest, of rows that are taken by blocks."""
    width = left.shape[1]
    total = ts.tile.zeros((BM,), norm.dtype)
    for d in ts.tile.range(0, width, B):
        total = total + how_many(apart(left, right, m, d, eps, BM, B), norm, is_inside(d, width, B))
    return total


@ts.function
def of_blocks(
    anchor: Any,
    positive: Any,
    negative: Any,
    stats: Any,
    m: Any,
    p: Any,
    eps: Any,
    power: Any,
    swap: Any,
    first: Any,
    BM: Any,
    B: Any,
) -> Any:
    """Return the same of rows that are taken by blocks; both distances of anchors in one pass."""
    width, acc = anchor.shape[1], p.dtype
    near = ts.tile.zeros((BM, B), acc)
    far = ts.tile.zeros((BM, B), acc)
    for d in ts.tile.range(0, width, B):
        here, inside = anchor[m : m + BM, d : d + B].to(acc), is_inside(d, width, B)
        of_near = powers(here - positive[m : m + BM, d : d + B].to(acc) + eps, p, power)
        of_far = powers(here - negative[m : m + BM, d : d + B].to(acc) + eps, p, power)
        near = joined(near, ts.tile.where(inside, of_near, 0.0), power)
        far = joined(far, ts.tile.where(inside, of_far, 0.0), power)
    to_positive, to_negative = norm_of(near, p, power), norm_of(far, p, power)
    stats[0, m : m + BM] = to_positive
    stats[1, m : m + BM] = to_negative
    if power == "max":
        stats[first, m : m + BM] = largest(anchor, positive, to_positive, m, eps, BM, B)
        stats[first + 1, m : m + BM] = largest(anchor, negative, to_negative, m, eps, BM, B)
    if swap:
        between = distance(positive, negative, m, p, eps, power, BM, B)
        stats[2, m : m + BM] = between
        if power == "max":
            stats[first + 2, m : m + BM] = largest(positive, negative, between, m, eps, BM, B)
        to_negative = nearer(to_negative, between)
    return to_positive, to_negative


@ts.kernel
def triplets(
    anchor: ts.Tensor[M, D, T],
    positive: ts.Tensor[M, D, T],
    negative: ts.Tensor[M, D, T],
    losses: ts.Tensor[M, L],
    stats: ts.Tensor[K, M, S],
    margin: F64,
    p: F64,
    eps: F64,
    power: Constant,
    swap: Constant,
    whole: Constant,
    acc: Constant,
    BM: Constant,
    B: Constant,
):
    """Losses of triplets, whose rows are taken whole or by blocks.

    `stats` keeps the distances: two, with `swap` three; with the largest difference then how many are as large.
    """
    first = 3 if swap else 2
    for m in ts.tile.grid((M, BM)):
        by = p.to(acc), eps.to(acc)
        if whole:
            near, far = of_rows(anchor, positive, negative, stats, m, by[0], by[1], power, swap, first, BM)
        else:
            near, far = of_blocks(anchor, positive, negative, stats, m, by[0], by[1], power, swap, first, BM, B)
        losses[m : m + BM] = ts.tile.maximum(near - far + margin.to(acc), 0.0)


@ts.function
def norm_slope(u: Any, norm: Any, count: Any, p: Any, power: Any) -> Any:
    """Return the derivatives of a norm, 0 where it has none; `count` differences are as large as the largest."""
    if power == 0:
        return ts.tile.zeros_like(u)
    if power == 1:
        return slope_of_size(u)
    if power == 2:
        return ts.tile.where(norm == 0.0, 0.0, u / norm)
    if power == "max":
        return ts.tile.where(is_largest(u, norm), slope_of_size(u) / count, 0.0)
    found = ts.tile.sign(u) * ts.tile.pow(ts.tile.abs(u) / norm, p - 1.0)
    return ts.tile.where((norm == 0.0) | ((u == 0.0) & (norm == norm)), 0.0, found)


@ts.function
def part_of(smaller: Any, larger: Any) -> Any:
    """Return the derivative of a minimum by the first of two numbers, halves where they are equal."""
    return ts.tile.where(smaller > larger, 0.0, ts.tile.where(smaller == larger, 0.5, 1.0))


@ts.function
def count_at(stats: Any, i: Any, m: Any, power: Any) -> Any:
    """Return how many differences are as large as the largest, where that is kept."""
    return stats[i, m] if power == "max" else 1.0


@ts.kernel
def triplet_gradients(
    grad: ts.Tensor[G, T],
    anchor: ts.Tensor[M, D, T],
    positive: ts.Tensor[M, D, T],
    negative: ts.Tensor[M, D, T],
    stats: ts.Tensor[K, M, S],
    grad_anchor: ts.Tensor[M, D, T] | None,
    grad_positive: ts.Tensor[M, D, T] | None,
    grad_negative: ts.Tensor[M, D, T] | None,
    margin: F64,
    p: F64,
    eps: F64,
    scale: F64,
    power: Constant,
    swap: Constant,
    reduced: Constant,
    acc: Constant,
    B: Constant,
):
    """Gradients of triplets by that of each loss, or by that of their sum times `scale`."""
    first = 3 if swap else 2
    for m, d in ts.tile.grid((M, 1), (D, B)):
        to_positive, to_negative = stats[0, m], stats[1, m]
        g = (grad[0] if reduced else grad[m]).to(acc) * scale.to(acc)
        least = nearer(to_negative, stats[2, m]) if swap else to_negative
        # Where the loss is exactly 0 PyTorch lets the gradient through, too, and of NaN it does not.
        slope = ts.tile.where(to_positive - least + margin.to(acc) >= 0.0, g, 0.0)
        here, close = anchor[m, d : d + B].to(acc), positive[m, d : d + B].to(acc)
        away = negative[m, d : d + B].to(acc)
        to_near = here - close + eps.to(acc)  # in this order, or a large anchor loses eps
        to_far = here - away + eps.to(acc)
        near = slope * norm_slope(to_near, to_positive, count_at(stats, first, m, power), p.to(acc), power)
        far = slope * norm_slope(to_far, to_negative, count_at(stats, first + 1, m, power), p.to(acc), power)
        between = 0.0
        if swap:
            far = far * part_of(to_negative, stats[2, m])
            found = norm_slope(close - away + eps.to(acc), stats[2, m], count_at(stats, 5, m, power), p.to(acc), power)
            between = slope * part_of(stats[2, m], to_negative) * found
        if grad_anchor is not None:
            grad_anchor[m, d : d + B] = near - far
        if grad_positive is not None:
            grad_positive[m, d : d + B] = -near - between
        if grad_negative is not None:
            grad_negative[m, d : d + B] = far + between
