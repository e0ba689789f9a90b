"""Kernels of softmax, its logarithm and logsumexp: along rows, along rows that no program holds, and along columns."""

from __future__ import annotations

from typing import Any

import tessera as ts
from tessera.ops.annotations import F64, I64, Constant
from tessera.ops.approximations import exp_for

T = ts.dtype_var("T", ts.bf16, ts.f16, ts.f32, ts.f64)
Y = ts.dtype_var("Y", ts.bf16, ts.f16, ts.f32, ts.f64)
W = ts.dtype_var("W", ts.bool_, ts.bf16, ts.f16, ts.f32, ts.f64)
M, N, P, A, B = ts.dims("M N P A B")
INF = float("inf")


@ts.function
def scores(x: Any, mask: Any, columns: Any, last: Any, scale: Any, boolean: Any) -> Any:
    """Return part of a row, scaled, with -inf past the last column and where the mask leaves elements out."""
    row = x * scale
    if mask is not None:
        row = ts.tile.where(mask, row, -INF) if boolean else row + mask.to(row.dtype)
    if last is not None:
        row = ts.tile.where(columns <= last, row, -INF)
    return row


@ts.function
def finite(top: Any) -> Any:
    """Return what is taken from the powers of e: the largest of them, 0 where there is none above -inf."""
    return ts.tile.where(top == -INF, 0.0, top)


@ts.function
def results_of(y: Any, sums: Any) -> Any:
    """Return what a kernel writes."""
    return sums if y is None else y


@ts.function
def finished(row: Any, powers: Any, top: Any, total: Any, form: Any, masked: Any) -> Any:
    """Return results of elements, their powers of e, and the largest and the sum of all of them."""
    if masked:
        total = ts.tile.where(total == 0.0, 1.0, total)
    return powers / total if form == "softmax" else row - finite(top) - ts.tile.log(total)


@ts.function
def logarithm(top: Any, total: Any) -> Any:
    """Return the logarithm of the sum of powers of e."""
    return ts.tile.where(top == INF, INF, finite(top) + ts.tile.log(total))


@ts.kernel
def rows(
    x: ts.Tensor[M, N, T],
    mask: ts.Tensor[P, N, W] | None,
    y: ts.Tensor[M, N, Y] | None,
    sums: ts.Tensor[M, Y] | None,
    scale: F64,
    queries: I64,
    form: Constant,
    boolean: Constant,
    causal: Constant,
    acc: Constant,
):
    """Softmax of rows, its logarithm, or the logarithms of their sums."""
    made = results_of(y, sums).dtype
    for m in ts.tile.grid((M, 1)):
        part = mask[m % P, :] if mask is not None else None
        last = m % queries + (N - queries) if causal else None
        row = scores(x[m, :].to(acc), part, ts.tile.arange(N, dtype=ts.i64), last, scale.to(acc), boolean)
        top = ts.tile.max(row)
        powers = exp_for(row - finite(top), made)
        total = ts.tile.sum(powers)
        if y is not None:
            y[m, :] = finished(row, powers, top, total, form, causal or mask is not None)
        if sums is not None:
            sums[m] = logarithm(top, total)


@ts.kernel
def wide_rows(
    x: ts.Tensor[M, N, T],
    mask: ts.Tensor[P, N, W] | None,
    y: ts.Tensor[M, N, Y] | None,
    sums: ts.Tensor[M, Y] | None,
    scale: F64,
    queries: I64,
    form: Constant,
    boolean: Constant,
    causal: Constant,
    acc: Constant,
    BN: Constant = 4096,
):
    """The same by pieces of rows: each place of a piece has its largest and its sum, and all have one in the end."""
    made = results_of(y, sums).dtype
    for m in ts.tile.grid((M, 1)):
        end = min(m % queries + (N - queries), N - 1) if causal else N - 1
        tops = ts.tile.full((BN,), -INF, acc)
        totals = ts.tile.zeros((BN,), acc)
        for n in ts.tile.range(0, N, BN):
            part = mask[m % P, n : n + BN] if mask is not None else None
            columns = n + ts.tile.arange(BN, dtype=ts.i64)
            row = scores(x[m, n : n + BN].to(acc), part, columns, end, scale.to(acc), boolean)
            above = ts.tile.maximum(tops, row)
            totals = totals * exp_for(tops - finite(above), made) + exp_for(row - finite(above), made)
            tops = above
        top = ts.tile.max(tops)
        total = ts.tile.sum(totals * exp_for(tops - finite(top), made))
        if sums is not None:
            sums[m] = logarithm(top, total)
        if y is not None:
            for n in ts.tile.range(0, N, BN):
                part = mask[m % P, n : n + BN] if mask is not None else None
                columns = n + ts.tile.arange(BN, dtype=ts.i64)
                row = scores(x[m, n : n + BN].to(acc), part, columns, end, scale.to(acc), boolean)
                powers = exp_for(row - finite(top), made)
                y[m, n : n + BN] = finished(row, powers, top, total, form, causal or mask is not None)


@ts.kernel
def columns(
    x: ts.Tensor[A, N, B, T],
    y: ts.Tensor[A, N, B, Y] | None,
    sums: ts.Tensor[A, B, Y] | None,
    scale: F64,
    form: Constant,
    acc: Constant,
    BN: Constant,
    BB: Constant,
):
    """The same along a dimension in the middle: blocks of columns carry their largest and their sum."""
    made = results_of(y, sums).dtype
    for a, b in ts.tile.grid((A, 1), (B, BB)):
        top = ts.tile.full((BB,), -INF, acc)
        total = ts.tile.zeros((BB,), acc)
        for n in ts.tile.range(0, N, BN):
            places = n + ts.tile.arange(BN, dtype=ts.i64)[:, None]
            block = scores(x[a, n : n + BN, b : b + BB].to(acc), None, places, N - 1, scale.to(acc), False)
            above = ts.tile.maximum(top, ts.tile.max(block, 0))
            powers = exp_for(block - finite(above)[None, :], made)
            total = total * exp_for(top - finite(above), made) + ts.tile.sum(powers, 0)
            top = above
        if sums is not None:
            sums[a, b : b + BB] = logarithm(top, total)
        if y is not None:
            for n in ts.tile.range(0, N, BN):
                block = x[a, n : n + BN, b : b + BB].to(acc) * scale.to(acc)
                powers = exp_for(block - finite(top)[None, :], made)
                y[a, n : n + BN, b : b + BB] = finished(block, powers, top[None, :], total[None, :], form, False)


@ts.function
def weight(g: Any, y: Any, form: Any) -> Any:
    """Return what is added up along a row for its gradient."""
    return g * y if form == "softmax" else g


@ts.function
def slope(g: Any, y: Any, total: Any, form: Any, masked: Any, made: Any) -> Any:
    """Return gradients of scores by those of results; what a mask leaves out has none."""
    if form == "softmax":
        return (g - total) * y
    found = g - exp_for(y, made) * total
    return ts.tile.where(y == -INF, 0.0, found) if masked else found


@ts.kernel
def rows_backward(
    grad: ts.Tensor[M, N, Y],
    y: ts.Tensor[M, N, Y],
    grad_x: ts.Tensor[M, N, T],
    scale: F64,
    form: Constant,
    masked: Constant,
    acc: Constant,
):
    """Gradients of rows: (g - sum(g·y))·y, or for logarithms g - exp(y)·sum(g)."""
    for m in ts.tile.grid((M, 1)):
        g, found = grad[m, :].to(acc), y[m, :].to(acc)
        total = ts.tile.sum(weight(g, found, form))
        grad_x[m, :] = slope(g, found, total, form, masked, grad_x.dtype) * scale.to(acc)


@ts.kernel
def wide_rows_backward(
    grad: ts.Tensor[M, N, Y],
    y: ts.Tensor[M, N, Y],
    grad_x: ts.Tensor[M, N, T],
    scale: F64,
    form: Constant,
    masked: Constant,
    acc: Constant,
    BN: Constant = 4096,
):
    """The same by pieces of rows."""
    for m in ts.tile.grid((M, 1)):
        totals = ts.tile.zeros((BN,), acc)
        for n in ts.tile.range(0, N, BN):
            totals = totals + weight(grad[m, n : n + BN].to(acc), y[m, n : n + BN].to(acc), form)
        total = ts.tile.sum(totals)
        for n in ts.tile.range(0, N, BN):
            g, found = grad[m, n : n + BN].to(acc), y[m, n : n + BN].to(acc)
            grad_x[m, n : n + BN] = slope(g, found, total, form, masked, grad_x.dtype) * scale.to(acc)


@ts.kernel
def columns_backward(
    grad: ts.Tensor[A, N, B, Y],
    y: ts.Tensor[A, N, B, Y],
    grad_x: ts.Tensor[A, N, B, T],
    scale: F64,
    form: Constant,
    acc: Constant,
    BN: Constant,
    BB: Constant,
):
    """The same along a dimension in the middle."""
    for a, b in ts.tile.grid((A, 1), (B, BB)):
        totals = ts.tile.zeros((BN, BB), acc)
        for n in ts.tile.range(0, N, BN):
            g, found = grad[a, n : n + BN, b : b + BB].to(acc), y[a, n : n + BN, b : b + BB].to(acc)
            totals = totals + weight(g, found, form)
        total = ts.tile.sum(totals, 0, keepdims=True)
        for n in ts.tile.range(0, N, BN):
            g, found = grad[a, n : n + BN, b : b + BB].to(acc), y[a, n : n + BN, b : b + BB].to(acc)
            grad_x[a, n : n + BN, b : b + BB] = slope(g, found, total, form, False, grad_x.dtype) * scale.to(acc)


@ts.kernel
def row_sums_backward(
    grad: ts.Tensor[M, T],
    x: ts.Tensor[M, N, T],
    sums: ts.Tensor[M, T],
    grad_x: ts.Tensor[M, N, T],
    acc: Constant,
    BN: Constant = 1024,
):
    """Gradients of logsumexp: the softmax times the gradient of its sum."""
    for m, n in ts.tile.grid((M, 1), (N, BN)):
        powers = exp_for(x[m, n : n + BN].to(acc) - finite(sums[m].to(acc)), grad_x.dtype)
        grad_x[m, n : n + BN] = grad[m].to(acc) * powers


@ts.kernel
def sums_backward(
    grad: ts.Tensor[A, B, T],
    x: ts.Tensor[A, N, B, T],
    sums: ts.Tensor[A, B, T],
    grad_x: ts.Tensor[A, N, B, T],
    acc: Constant,
    BN: Constant = 16,
    BB: Constant = 128,
):
    """The same along a dimension in the middle."""
    for a, n, b in ts.tile.grid((A, 1), (N, BN), (B, BB)):
        total = sums[a, b : b + BB].to(acc)[None, :]
        powers = exp_for(x[a, n : n + BN, b : b + BB].to(acc) - finite(total), grad_x.dtype)
        grad_x[a, n : n + BN, b : b + BB] = grad[a, b : b + BB].to(acc)[None, :] * powers
