"""Kernels of losses of pairs of vectors: cosines; rows in blocks of columns."""

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
