"""Kernels of running sums and products along rows and along a dimension in the middle, block by block."""

from __future__ import annotations

from typing import Any

import tessera as ts
from tessera.ops.annotations import Constant

NUMBERS = (ts.bf16, ts.f16, ts.f32, ts.f64, ts.i8, ts.u8, ts.i16, ts.i32, ts.i64)
T = ts.dtype_var("T", *NUMBERS, ts.bool_)
Y = ts.dtype_var("Y", *NUMBERS)
A, N, B = ts.dims("A N B")


@ts.function
def start(kind: Any) -> Any:
    """Return what a running combination starts from."""
    return 1 if kind == "prod" else 0


@ts.function
def running(block: Any, before: Any, axis: Any, kind: Any, reverse: Any) -> Any:
    """Return a running combination with what came before the block."""
    if kind == "prod":
        return ts.tile.cumprod(block, axis, reverse) * before
    return ts.tile.cumsum(block, axis, reverse) + before


@ts.kernel
def rows(
    x: ts.Tensor[A, N, T],
    y: ts.Tensor[A, N, Y],
    kind: Constant,
    reverse: Constant,
    acc: Constant,
    BA: Constant,
    BN: Constant,
):
    """Running sums or products along rows."""
    for a in ts.tile.grid((A, BA)):
        before = ts.tile.full((BA,), start(kind), acc)
        steps = ts.cdiv(N, BN)
        for i in ts.tile.range(steps):
            n = (steps - 1 - i if reverse else i) * BN
            block = ts.tile.load(x[a : a + BA, n : n + BN], fill=start(kind)).to(acc)
            found = running(block, before[:, None], 1, kind, reverse)
            y[a : a + BA, n : n + BN] = found
            before = found[:, 0] if reverse else found[:, BN - 1]


@ts.kernel
def columns(
    x: ts.Tensor[A, N, B, T],
    y: ts.Tensor[A, N, B, Y],
    kind: Constant,
    reverse: Constant,
    acc: Constant,
    BN: Constant,
    BB: Constant,
):
    """The same along a dimension in the middle."""
    for a, b in ts.tile.grid((A, 1), (B, BB)):
        before = ts.tile.full((BB,), start(kind), acc)
        steps = ts.cdiv(N, BN)
        for i in ts.tile.range(steps):
            n = (steps - 1 - i if reverse else i) * BN
            block = ts.tile.load(x[a, n : n + BN, b : b + BB], fill=start(kind)).to(acc)
            found = running(block, before[None, :], 0, kind, reverse)
            y[a, n : n + BN, b : b + BB] = found
            before = found[0, :] if reverse else found[BN - 1, :]


@ts.function
def follow(a: Any, b: Any, c: Any, d: Any) -> Any:
    """Return two steps of `h = c·h + d` as one."""
    return a * c, b * c + d


@ts.kernel
def row_products_backward(
    grad: ts.Tensor[A, N, Y],
    x: ts.Tensor[A, N, T],
    y: ts.Tensor[A, N, Y],
    grad_x: ts.Tensor[A, N, T],
    acc: Constant,
    BA: Constant,
    BN: Constant,
):
    """Gradients of running products along rows: y[n - 1]·h[n], h[n] = g[n] + x[n + 1]·h[n + 1]; zeros do no harm."""
    for a in ts.tile.grid((A, BA)):
        before = ts.tile.zeros((BA,), acc)
        steps = ts.cdiv(N, BN)
        for i in ts.tile.range(steps):
            n = (steps - 1 - i) * BN
            factor = x[a : a + BA, n + 1 : n + 1 + BN].to(acc)
            factors, sums = ts.tile.scan((factor, grad[a : a + BA, n : n + BN].to(acc)), 1, follow, reverse=True)
            found = sums + factors * before[:, None]
            product = ts.tile.load(y[a : a + BA, n - 1 : n - 1 + BN], fill=1.0).to(acc)
            grad_x[a : a + BA, n : n + BN] = product * found
            before = found[:, 0]


@ts.kernel
def column_products_backward(
    grad: ts.Tensor[A, N, B, Y],
    x: ts.Tensor[A, N, B, T],
    y: ts.Tensor[A, N, B, Y],
    grad_x: ts.Tensor[A, N, B, T],
    acc: Constant,
    BN: Constant,
    BB: Constant,
):
    """The same along a dimension in the middle."""
    for a, b in ts.tile.grid((A, 1), (B, BB)):
        before = ts.tile.zeros((BB,), acc)
        steps = ts.cdiv(N, BN)
        for i in ts.tile.range(steps):
            n = (steps - 1 - i) * BN
            factor = x[a, n + 1 : n + 1 + BN, b : b + BB].to(acc)
            factors, sums = ts.tile.scan((factor, grad[a, n : n + BN, b : b + BB].to(acc)), 0, follow, reverse=True)
            found = sums + factors * before[None, :]
            product = ts.tile.load(y[a, n - 1 : n - 1 + BN, b : b + BB], fill=1.0).to(acc)
            grad_x[a, n : n + BN, b : b + BB] = product * found
            before = found[0, :]
