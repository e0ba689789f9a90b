"""Kernels of logarithms of running sums of exponentials, block by block."""

from __future__ import annotations

from typing import Any

import tessera as ts
from tessera.ops.annotations import I64, Constant
from tessera.ops.running.kernels import blocks_of, part_before

T = ts.dtype_var("T", ts.bf16, ts.f16, ts.f32, ts.f64)
S = ts.dtype_var("S", ts.f32, ts.f64)
A, N, B, C = ts.dims("A N B C")


@ts.function
def added(a: Any, b: Any, c: Any, d: Any) -> Any:
    """Return `exp(a)·b + exp(c)·d` as such a pair: the larger exponent, and a sum."""
    most = ts.tile.maximum(a, c)
    apart = ts.tile.where(a == c, 0.0, ts.tile.minimum(a, c) - most)  # equal infinities too
    less = ts.tile.exp(apart)
    return most, ts.tile.where(a >= c, b + d * less, b * less + d)


@ts.function
def running(block: Any, most: Any, total: Any, axis: Any) -> Any:
    """Return the pairs of a block, with what came before."""
    found, sums = ts.tile.scan((block, ts.tile.full(block.shape, 1.0, block.dtype)), axis, added)
    return added(most, total, found, sums)


@ts.kernel
def rows(
    x: ts.Tensor[A, N, T],
    starts: ts.Tensor[A, C, S] | None,
    y: ts.Tensor[A, N, T],
    acc: Constant,
    each: I64,
    BA: Constant,
    BN: Constant,
):
    """Logarithms along rows, or along parts of so many blocks; `starts` has those at the ends of parts."""
    count = 1 if starts is None else C
    for a, c in ts.tile.grid((A, BA), (count, 1)):
        most, total = ts.tile.full((BA,), -float("inf"), acc), ts.tile.zeros((BA,), acc)
        if starts is not None:
            place, known = part_before(c, C, False)
            most = ts.tile.where(known, starts[a : a + BA, place].to(acc), most)
            total = ts.tile.where(most > -float("inf"), ts.tile.full((BA,), 1.0, acc), total)
        begin, steps = blocks_of(starts, c, each, ts.cdiv(N, BN))
        for i in ts.tile.range(steps):
            n = (begin + i) * BN
            block = ts.tile.load(x[a : a + BA, n : n + BN], fill=-float("inf")).to(acc)
            found, sums = running(block, most[:, None], total[:, None], 1)
            y[a : a + BA, n : n + BN] = found + ts.tile.log(sums)
            most, total = found[:, BN - 1], sums[:, BN - 1]


@ts.kernel
def row_totals(x: ts.Tensor[A, N, T], totals: ts.Tensor[A, C, S], each: I64, BA: Constant, BN: Constant):
    """Logarithms of each part of a row."""
    acc = totals.dtype
    for a, c in ts.tile.grid((A, BA), (C, 1)):
        most, total = ts.tile.full((BA, BN), -float("inf"), acc), ts.tile.zeros((BA, BN), acc)
        for i in ts.tile.range(ts.tile.minimum(each, ts.cdiv(N, BN) - c * each)):
            n = (c * each + i) * BN
            block = ts.tile.load(x[a : a + BA, n : n + BN], fill=-float("inf")).to(acc)
            most, total = added(most, total, block, ts.tile.full((BA, BN), 1.0, acc))
        whole, sums = ts.tile.reduce((most, total), 1, added)
        totals[a : a + BA, c] = whole + ts.tile.log(sums)


@ts.kernel
def columns(
    x: ts.Tensor[A, N, B, T],
    starts: ts.Tensor[A, C, B, S] | None,
    y: ts.Tensor[A, N, B, T],
    acc: Constant,
    each: I64,
    BN: Constant,
    BB: Constant,
):
    """The same along a dimension in the middle."""
    count = 1 if starts is None else C
    for a, c, b in ts.tile.grid((A, 1), (count, 1), (B, BB)):
        most, total = ts.tile.full((BB,), -float("inf"), acc), ts.tile.zeros((BB,), acc)
        if starts is not None:
            place, known = part_before(c, C, False)
            most = ts.tile.where(known, starts[a, place, b : b + BB].to(acc), most)
            total = ts.tile.where(most > -float("inf"), ts.tile.full((BB,), 1.0, acc), total)
        begin, steps = blocks_of(starts, c, each, ts.cdiv(N, BN))
        for i in ts.tile.range(steps):
            n = (begin + i) * BN
            block = ts.tile.load(x[a, n : n + BN, b : b + BB], fill=-float("inf")).to(acc)
            found, sums = running(block, most[None, :], total[None, :], 0)
            y[a, n : n + BN, b : b + BB] = found + ts.tile.log(sums)
            most, total = found[BN - 1, :], sums[BN - 1, :]


@ts.kernel
def column_totals(x: ts.Tensor[A, N, B, T], totals: ts.Tensor[A, C, B, S], each: I64, BN: Constant, BB: Constant):
    """Logarithms of each part of a dimension in the middle."""
    acc = totals.dtype
    for a, c, b in ts.tile.grid((A, 1), (C, 1), (B, BB)):
        most, total = ts.tile.full((BN, BB), -float("inf"), acc), ts.tile.zeros((BN, BB), acc)
        for i in ts.tile.range(ts.tile.minimum(each, ts.cdiv(N, BN) - c * each)):
            n = (c * each + i) * BN
            block = ts.tile.load(x[a, n : n + BN, b : b + BB], fill=-float("inf")).to(acc)
            most, total = added(most, total, block, ts.tile.full((BN, BB), 1.0, acc))
        whole, sums = ts.tile.reduce((most, total), 0, added)
        totals[a, c, b : b + BB] = whole + ts.tile.log(sums)
