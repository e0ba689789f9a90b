"""Kernels of running sums and products along rows and along a dimension in the middle, block by block.

A long dimension of few rows is taken in parts: their totals are added up before, so that each part knows its start.
"""

from __future__ import annotations

from typing import Any

import tessera as ts
from tessera.ops.annotations import I64, Constant

NUMBERS = (ts.bf16, ts.f16, ts.f32, ts.f64, ts.i8, ts.u8, ts.i16, ts.i32, ts.i64)
T = ts.dtype_var("T", *NUMBERS, ts.bool_)
Y = ts.dtype_var("Y", *NUMBERS)
S = ts.dtype_var("S", ts.f32, ts.f64, ts.i64)
A, N, B, C = ts.dims("A N B C")


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


@ts.function
def block_of(i: Any, steps: Any, reverse: Any) -> Any:
    """Return which of some blocks is taken as the `i`-th."""
    return steps - 1 - i if reverse else i


@ts.function
def blocks_of(starts: Any, c: Any, each: Any, count: Any) -> Any:
    """Return the first block of a part, and how many it has: all of them where there are no starts of parts."""
    if starts is None:
        return 0, count
    return c * each, ts.tile.minimum(each, count - c * each)


@ts.function
def part_before(c: Any, count: Any, reverse: Any) -> Any:
    """Return the part that comes before another one, and whether there is one; otherwise any part."""
    before = c + 1 if reverse else c - 1
    return ts.tile.minimum(ts.tile.maximum(before, 0), count - 1), (before >= 0) & (before < count)


@ts.kernel
def rows(
    x: ts.Tensor[A, N, T],
    starts: ts.Tensor[A, C, S] | None,
    y: ts.Tensor[A, N, Y],
    kind: Constant,
    reverse: Constant,
    acc: Constant,
    each: I64,
    BA: Constant,
    BN: Constant,
):
    """Running sums or products along rows, or along parts of them, of each so many blocks.

    What comes before a part is in `starts`: running totals of the parts.
    """
    count = 1 if starts is None else C
    for a, c in ts.tile.grid((A, BA), (count, 1)):
        before = ts.tile.full((BA,), start(kind), acc)
        if starts is not None:
            place, known = part_before(c, C, reverse)
            before = ts.tile.where(known, starts[a : a + BA, place].to(acc), before)
        begin, steps = blocks_of(starts, c, each, ts.cdiv(N, BN))
        for i in ts.tile.range(steps):
            n = (begin + block_of(i, steps, reverse)) * BN
            block = ts.tile.load(x[a : a + BA, n : n + BN], fill=start(kind)).to(acc)
            found = running(block, before[:, None], 1, kind, reverse)
            y[a : a + BA, n : n + BN] = found
            before = found[:, 0] if reverse else found[:, BN - 1]


@ts.kernel
def row_totals(
    x: ts.Tensor[A, N, T],
    totals: ts.Tensor[A, C, S],
    kind: Constant,
    each: I64,
    BA: Constant,
    BN: Constant,
):
    """Combine the elements of each part of a row."""
    for a, c in ts.tile.grid((A, BA), (C, 1)):
        found = ts.tile.full((BA, BN), start(kind), totals.dtype)
        for i in ts.tile.range(ts.tile.minimum(each, ts.cdiv(N, BN) - c * each)):
            n = (c * each + i) * BN
            block = ts.tile.load(x[a : a + BA, n : n + BN], fill=start(kind)).to(totals.dtype)
            found = found * block if kind == "prod" else found + block
        totals[a : a + BA, c] = ts.tile.prod(found, 1) if kind == "prod" else ts.tile.sum(found, 1)


@ts.kernel
def columns(
    x: ts.Tensor[A, N, B, T],
    starts: ts.Tensor[A, C, B, S] | None,
    y: ts.Tensor[A, N, B, Y],
    kind: Constant,
    reverse: Constant,
    acc: Constant,
    each: I64,
    BN: Constant,
    BB: Constant,
):
    """The same along a dimension in the middle."""
    count = 1 if starts is None else C
    for a, c, b in ts.tile.grid((A, 1), (count, 1), (B, BB)):
        before = ts.tile.full((BB,), start(kind), acc)
        if starts is not None:
            place, known = part_before(c, C, reverse)
            before = ts.tile.where(known, starts[a, place, b : b + BB].to(acc), before)
        begin, steps = blocks_of(starts, c, each, ts.cdiv(N, BN))
        for i in ts.tile.range(steps):
            n = (begin + block_of(i, steps, reverse)) * BN
            block = ts.tile.load(x[a, n : n + BN, b : b + BB], fill=start(kind)).to(acc)
            found = running(block, before[None, :], 0, kind, reverse)
            y[a, n : n + BN, b : b + BB] = found
            before = found[0, :] if reverse else found[BN - 1, :]


@ts.kernel
def column_totals(
    x: ts.Tensor[A, N, B, T],
    totals: ts.Tensor[A, C, B, S],
    kind: Constant,
    each: I64,
    BN: Constant,
    BB: Constant,
):
    """Combine the elements of each part of a dimension in the middle."""
    for a, c, b in ts.tile.grid((A, 1), (C, 1), (B, BB)):
        found = ts.tile.full((BN, BB), start(kind), totals.dtype)
        for i in ts.tile.range(ts.tile.minimum(each, ts.cdiv(N, BN) - c * each)):
            n = (c * each + i) * BN
            block = ts.tile.load(x[a, n : n + BN, b : b + BB], fill=start(kind)).to(totals.dtype)
            found = found * block if kind == "prod" else found + block
        totals[a, c, b : b + BB] = ts.tile.prod(found, 0) if kind == "prod" else ts.tile.sum(found, 0)


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
