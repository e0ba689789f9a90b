"""Kernels of losses of vectors: cosines of pairs, distances of triplets; rows in blocks of columns."""

from __future__ import annotations

from typing import Any

import tessera as ts
from tessera.ops.annotations import F64, Constant

T = ts.dtype_var("T", ts.bf16, ts.f16, ts.f32, ts.f64)
L = ts.dtype_var("L", ts.bf16, ts.f16, ts.f32, ts.f64)
Y = ts.dtype_var("Y", ts.i64, ts.i32, ts.bf16, ts.f16, ts.f32, ts.f64)
S = ts.dtype_var("S", ts.f32, ts.f64)
M, D, G = ts.dims("M D G")

COSINE_EPS = 1e-12
"""Added to squares of lengths, as PyTorch has it."""


@ts.function
def by_sign(sign: Any, alike: Any, apart: Any) -> Any:
    """Return what belongs to a target: 1, -1 or neither."""
    return ts.tile.where(sign == 1.0, alike, ts.tile.where(sign == -1.0, apart, 0.0))


@ts.function
def products_of(left: Any, right: Any) -> Any:
    """Return the products of rows: of both, and of each with itself."""
    return ts.tile.sum(left * right, 1), ts.tile.sum(left * left, 1), ts.tile.sum(right * right, 1)


@ts.kernel
def cosines(
    x: ts.Tensor[M, D, T],
    y: ts.Tensor[M, D, T],
    target: ts.Tensor[M, Y],
    losses: ts.Tensor[M, L],
    stats: ts.Tensor[3, M, S],
    margin: F64,
    whole: Constant,
    acc: Constant,
    BM: Constant,
    B: Constant,
):
    """Losses of pairs, whose rows are taken whole or by blocks; `stats` keeps products, and squares of lengths."""
    for m in ts.tile.grid((M, BM)):
        if whole:
            inner, first, second = products_of(x[m : m + BM, :].to(acc), y[m : m + BM, :].to(acc))
        else:
            product = ts.tile.zeros((BM, B), acc)
            of_x = ts.tile.zeros((BM, B), acc)
            of_y = ts.tile.zeros((BM, B), acc)
            for d in ts.tile.range(0, D, B):
                left, right = x[m : m + BM, d : d + B].to(acc), y[m : m + BM, d : d + B].to(acc)
                product = product + left * right
                of_x = of_x + left * left
                of_y = of_y + right * right
            inner, first, second = ts.tile.sum(product, 1), ts.tile.sum(of_x, 1), ts.tile.sum(of_y, 1)
        first, second = first + COSINE_EPS, second + COSINE_EPS
        cosine = inner / (ts.tile.sqrt(first) * ts.tile.sqrt(second))
        apart = ts.tile.maximum(cosine - margin.to(acc), 0.0)
        losses[m : m + BM] = by_sign(target[m : m + BM].to(acc), 1.0 - cosine, apart)
        stats[0, m : m + BM] = inner
        stats[1, m : m + BM] = first
        stats[2, m : m + BM] = second


@ts.kernel
def cosine_gradients(
    grad: ts.Tensor[G, T],
    x: ts.Tensor[M, D, T],
    y: ts.Tensor[M, D, T],
    target: ts.Tensor[M, Y],
    stats: ts.Tensor[3, M, S],
    grad_x: ts.Tensor[M, D, T] | None,
    grad_y: ts.Tensor[M, D, T] | None,
    margin: F64,
    scale: F64,
    reduced: Constant,
    acc: Constant,
    B: Constant,
):
    """Gradients of pairs by that of each loss, or by that of their sum times `scale`."""
    for m, d in ts.tile.grid((M, 1), (D, B)):
        first, second = stats[1, m], stats[2, m]
        lengths = ts.tile.sqrt(first) * ts.tile.sqrt(second)
        cosine = stats[0, m] / lengths
        g = (grad[0] if reduced else grad[m]).to(acc) * scale.to(acc)
        slope = by_sign(target[m].to(acc), -g, ts.tile.where(cosine < margin.to(acc), 0.0, g))
        left, right = x[m, d : d + B].to(acc), y[m, d : d + B].to(acc)
        if grad_x is not None:
            grad_x[m, d : d + B] = slope * (right / lengths - left * (cosine / first))
        if grad_y is not None:
            grad_y[m, d : d + B] = slope * (left / lengths - right * (cosine / second))


@ts.function
def powers(u: Any, p: Any, power: Any) -> Any:
    """Return what is added up for a norm; `power` is 1, 2 or None for any `p`."""
    if power == 1:
        return ts.tile.abs(u)
    if power == 2:
        return u * u
    return ts.tile.where(u == 0.0, 0.0, ts.tile.pow(ts.tile.abs(u), p))


@ts.function
def root(total: Any, p: Any, power: Any) -> Any:
    """Return the norm of a sum of powers."""
    if power == 1:
        return total
    if power == 2:
        return ts.tile.sqrt(total)
    return ts.tile.where(total == 0.0, 0.0, ts.tile.pow(total, 1.0 / p))


@ts.function
def norm_slope(u: Any, norm: Any, p: Any, power: Any) -> Any:
    """Return the derivatives of a norm, 0 where it has none."""
    if power == 1:
        return ts.tile.sign(u)
    if power == 2:
        return ts.tile.where(norm == 0.0, 0.0, u / norm)
    found = ts.tile.sign(u) * ts.tile.pow(ts.tile.abs(u) / norm, p - 1.0)
    return ts.tile.where((norm == 0.0) | (u == 0.0), 0.0, found)


@ts.kernel
def triplets(
    anchor: ts.Tensor[M, D, T],
    positive: ts.Tensor[M, D, T],
    negative: ts.Tensor[M, D, T],
    losses: ts.Tensor[M, L],
    stats: ts.Tensor[2, M, S],
    margin: F64,
    p: F64,
    eps: F64,
    power: Constant,
    whole: Constant,
    acc: Constant,
    BM: Constant,
    B: Constant,
):
    """Losses of triplets, whose rows are taken whole or by blocks; `stats` keeps the distances."""
    for m in ts.tile.grid((M, BM)):
        if whole:
            here = anchor[m : m + BM, :].to(acc)
            near = powers(here - positive[m : m + BM, :].to(acc) + eps.to(acc), p.to(acc), power)
            far = powers(here - negative[m : m + BM, :].to(acc) + eps.to(acc), p.to(acc), power)
        else:
            near = ts.tile.zeros((BM, B), acc)
            far = ts.tile.zeros((BM, B), acc)
            for d in ts.tile.range(0, D, B):
                here = anchor[m : m + BM, d : d + B].to(acc)
                inside = (d + ts.tile.arange(B, dtype=ts.i64) < D)[None, :]
                of_near = powers(here - positive[m : m + BM, d : d + B].to(acc) + eps.to(acc), p.to(acc), power)
                of_far = powers(here - negative[m : m + BM, d : d + B].to(acc) + eps.to(acc), p.to(acc), power)
                near = near + ts.tile.where(inside, of_near, 0.0)
                far = far + ts.tile.where(inside, of_far, 0.0)
        to_positive = root(ts.tile.sum(near, 1), p.to(acc), power)
        to_negative = root(ts.tile.sum(far, 1), p.to(acc), power)
        losses[m : m + BM] = ts.tile.maximum(to_positive - to_negative + margin.to(acc), 0.0)
        stats[0, m : m + BM] = to_positive
        stats[1, m : m + BM] = to_negative


@ts.kernel
def triplet_gradients(
    grad: ts.Tensor[G, T],
    anchor: ts.Tensor[M, D, T],
    positive: ts.Tensor[M, D, T],
    negative: ts.Tensor[M, D, T],
    stats: ts.Tensor[2, M, S],
    grad_anchor: ts.Tensor[M, D, T] | None,
    grad_positive: ts.Tensor[M, D, T] | None,
    grad_negative: ts.Tensor[M, D, T] | None,
    margin: F64,
    p: F64,
    eps: F64,
    scale: F64,
    power: Constant,
    reduced: Constant,
    acc: Constant,
    B: Constant,
):
    """Gradients of triplets by that of each loss, or by that of their sum times `scale`."""
    for m, d in ts.tile.grid((M, 1), (D, B)):
        to_positive, to_negative = stats[0, m], stats[1, m]
        g = (grad[0] if reduced else grad[m]).to(acc) * scale.to(acc)
        # Where the loss is exactly 0 PyTorch lets the gradient through, too.
        slope = ts.tile.where(to_positive - to_negative + margin.to(acc) < 0.0, 0.0, g)
        here = anchor[m, d : d + B].to(acc)
        to_near = here - positive[m, d : d + B].to(acc) + eps.to(acc)  # in this order, or a large anchor loses eps
        to_far = here - negative[m, d : d + B].to(acc) + eps.to(acc)
        near = slope * norm_slope(to_near, to_positive, p.to(acc), power)
        far = slope * norm_slope(to_far, to_negative, p.to(acc), power)
        if grad_anchor is not None:
            grad_anchor[m, d : d + B] = near - far
        if grad_positive is not None:
            grad_positive[m, d : d + B] = -near
        if grad_negative is not None:
            grad_negative[m, d : d + B] = far
