"""Kernels of running extremes with their places, along rows and along a dimension in the middle."""

from __future__ import annotations

from typing import Any

import tessera as ts
from tessera.ops.annotations import Constant

T = ts.dtype_var("T", ts.bf16, ts.f16, ts.f32, ts.f64, ts.i8, ts.u8, ts.i16, ts.i32, ts.i64)
A, N, B = ts.dims("A N B")


@ts.function
def latest(a: Any, i: Any, b: Any, j: Any, kind: Any) -> Any:
    """Return the extreme of an element and a later one, with its place: of equal ones the later."""
    order = b <= a if kind == "min" else b >= a
    chosen = order | (b != b)
    return ts.tile.where(chosen, b, a), ts.tile.where(chosen, j, i)


@ts.function
def larger(a: Any, i: Any, b: Any, j: Any) -> Any:
    """Return the larger of two elements with its place."""
    return latest(a, i, b, j, "max")


@ts.function
def smaller(a: Any, i: Any, b: Any, j: Any) -> Any:
    """Return the smaller of two elements with its place."""
    return latest(a, i, b, j, "min")


@ts.function
def running(block: Any, places: Any, before: Any, place: Any, axis: Any, kind: Any) -> Any:
    """Return running extremes of a block and their places, with what came before."""
    if kind == "min":
        values, at = ts.tile.scan((block, places), axis, smaller)
    else:
        values, at = ts.tile.scan((block, places), axis, larger)
    return latest(before, place, values, at, kind)


@ts.kernel
def rows(
    x: ts.Tensor[A, N, T],
    values: ts.Tensor[A, N, T],
    places: ts.Tensor[A, N, ts.i64],
    kind: Constant,
    last: Constant,
    acc: Constant,
    BA: Constant,
    BN: Constant,
):
    """Running extremes along rows; `last` is behind all other numbers."""
    for a in ts.tile.grid((A, BA)):
        before = ts.tile.full((BA,), last, acc)
        place = ts.tile.zeros((BA,), ts.i64)
        for n in ts.tile.range(0, N, BN):
            block = ts.tile.load(x[a : a + BA, n : n + BN], fill=last).to(acc)
            steps = ts.tile.broadcast_to(n + ts.tile.arange(BN, dtype=ts.i64)[None, :], (BA, BN))
            found, at = running(block, steps, before[:, None], place[:, None], 1, kind)
            values[a : a + BA, n : n + BN] = found
            places[a : a + BA, n : n + BN] = at
            before = found[:, BN - 1]
            place = at[:, BN - 1]


@ts.kernel
def columns(
    x: ts.Tensor[A, N, B, T],
    values: ts.Tensor[A, N, B, T],
    places: ts.Tensor[A, N, B, ts.i64],
    kind: Constant,
    last: Constant,
    acc: Constant,
    BN: Constant,
    BB: Constant,
):
    """The same along a dimension in the middle."""
    for a, b in ts.tile.grid((A, 1), (B, BB)):
        before = ts.tile.full((BB,), last, acc)
        place = ts.tile.zeros((BB,), ts.i64)
        for n in ts.tile.range(0, N, BN):
            block = ts.tile.load(x[a, n : n + BN, b : b + BB], fill=last).to(acc)
            steps = ts.tile.broadcast_to(n + ts.tile.arange(BN, dtype=ts.i64)[:, None], (BN, BB))
            found, at = running(block, steps, before[None, :], place[None, :], 0, kind)
            values[a, n : n + BN, b : b + BB] = found
            places[a, n : n + BN, b : b + BB] = at
            before = found[BN - 1, :]
            place = at[BN - 1, :]


@ts.function
def of_one_place(a: Any, i: Any, b: Any, j: Any) -> Any:
    """Return the sum of an element and what was added up behind it, where that has the same place."""
    return ts.tile.where(i == j, a + b, b), j


@ts.kernel
def rows_backward(
    grad: ts.Tensor[A, N, T],
    places: ts.Tensor[A, N, ts.i64],
    grad_x: ts.Tensor[A, N, T],
    acc: Constant,
    BA: Constant,
    BN: Constant,
):
    """Gradients along rows: an element has those of all results that it is. These lie side by side, from its own on."""
    for a in ts.tile.grid((A, BA)):
        before = ts.tile.zeros((BA,), acc)
        place = ts.tile.full((BA,), -1, ts.i64)
        count = ts.cdiv(N, BN)
        for i in ts.tile.range(count):
            n = (count - 1 - i) * BN
            at = ts.tile.load(places[a : a + BA, n : n + BN], fill=-1)
            sums, _ = ts.tile.scan((grad[a : a + BA, n : n + BN].to(acc), at), 1, of_one_place, reverse=True)
            sums = sums + ts.tile.where(at == place[:, None], before[:, None], 0.0)
            own = n + ts.tile.arange(BN, dtype=ts.i64)[None, :]
            grad_x[a : a + BA, n : n + BN] = ts.tile.where(at == own, sums, 0.0)
            before = sums[:, 0]
            place = at[:, 0]


@ts.kernel
def columns_backward(
    grad: ts.Tensor[A, N, B, T],
    places: ts.Tensor[A, N, B, ts.i64],
    grad_x: ts.Tensor[A, N, B, T],
    acc: Constant,
    BN: Constant,
    BB: Constant,
):
    """The same along a dimension in the middle."""
    for a, b in ts.tile.grid((A, 1), (B, BB)):
        before = ts.tile.zeros((BB,), acc)
        place = ts.tile.full((BB,), -1, ts.i64)
        count = ts.cdiv(N, BN)
        for i in ts.tile.range(count):
            n = (count - 1 - i) * BN
            at = ts.tile.load(places[a, n : n + BN, b : b + BB], fill=-1)
            sums, _ = ts.tile.scan((grad[a, n : n + BN, b : b + BB].to(acc), at), 0, of_one_place, reverse=True)
            sums = sums + ts.tile.where(at == place[None, :], before[None, :], 0.0)
            own = n + ts.tile.arange(BN, dtype=ts.i64)[:, None]
            grad_x[a, n : n + BN, b : b + BB] = ts.tile.where(at == own, sums, 0.0)
            before = sums[0, :]
            place = at[0, :]
