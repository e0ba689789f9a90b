"""The tile kernels of f32 products on matrix units: operands become sums of two numbers of tf32, `high + low`.

Three products of tf32, high by high, high by low and low by high, give what f32 holds; the fourth is below it. Sums of
one step join the accumulator by additions that round to nearest, where matrix units would cut off (Ootomo & Yokota,
Recovering single precision accuracy from Tensor Cores, IJHPCA 2022).
"""

from __future__ import annotations

from typing import Any

import tessera as ts
from tessera.ops.linalg.kernels import (
    BA,
    BB,
    FLAGS,
    PA,
    PB,
    RA,
    RB,
    B,
    K,
    M,
    N,
    left,
    place_of,
    read_tile,
    right,
    step,
    tiles_of,
    write_tile,
)

DROPPED = 13
"""Bits of an f32 mantissa that tf32 lacks."""
ODD = 2.0**55
"""Magnitude from which on sums of products of halves might overflow where those of f32 numbers do not."""


@ts.function
def rounded(x: Any) -> Any:
    """Return f32 numbers rounded to what tf32 holds, halves away from zero."""
    bits = ts.tile.bitcast(x, ts.i32)
    return ts.tile.bitcast((bits + (1 << (DROPPED - 1))) & -(1 << DROPPED), ts.f32)


@ts.function
def halve_tile(
    source: Any, high: Any, low: Any, odd: Any, t: Any, tile: Any, count: Any, padded: Any, across: Any, batched: Any
) -> None:
    """Store one tile of f32 numbers as the sums of two of tf32, and whether any is too large, infinite or NaN."""
    matrix, r, c = place_of(tile, count, padded)
    x = read_tile(source, matrix, r, c, across, batched)
    most = rounded(x)
    write_tile(high, most, matrix, r, c, batched)
    write_tile(low, rounded(x - most), matrix, r, c, batched)
    odd[t] = ts.tile.max(ts.tile.where(ts.tile.abs(x) < ODD, 0, 1).to(ts.i32))


def halve(a: Any, b: Any, x: Any, x_low: Any, y: Any, y_low: Any, odd: Any) -> Any:
    """Store both operands as sums of two numbers of tf32, in padded lines."""
    ctx = ts.tile.context()
    before = (BA if ctx.batched_a else 1) * tiles_of(RA, PA)
    for (t,) in ts.tile.grid((before + (BB if ctx.batched_b else 1) * tiles_of(RB, PB), 1)):
        if t < before:
            halve_tile(a, x, x_low, odd, t, t, RA, PA, ctx.across_a, ctx.batched_a)
        else:
            halve_tile(b, y, y_low, odd, t, t - before, RB, PB, ctx.across_b, ctx.batched_b)
    return x, x_low, y, y_low, odd


@ts.function
def line(lines: Any, batch: Any, start: Any, k: Any, count: Any, batched: Any) -> Any:
    """Load terms of some lines."""
    ctx = ts.tile.context()
    if batched:
        return lines[batch, start : start + count, k : k + ctx.BK]
    return lines[start : start + count, k : k + ctx.BK]


@ts.function
def step_of_halves(acc: Any, a: Any, a_low: Any, b: Any, b_low: Any, i: Any, m: Any, n: Any, k: Any) -> Any:
    """Add one block of products of sums of two: all but the product of the low ones, the smallest first."""
    ctx = ts.tile.context()
    high = line(a, i, m, k, ctx.BM, ctx.a_batched)
    low = line(a_low, i, m, k, ctx.BM, ctx.a_batched)
    right = line(b, i, n, k, ctx.BN, ctx.b_batched).T
    right_low = line(b_low, i, n, k, ctx.BN, ctx.b_batched).T
    return acc + ts.tile.mma(high, right, ts.tile.mma(high, right_low, ts.tile.mma(low, right)))


def gemm_halves(a: Any, a_low: Any, b: Any, b_low: Any, out: Any, epilogue: Any) -> Any:
    """Compute `out = epilogue((a + a_low)·(b + b_low)ᵀ)`; sums of a step join the accumulator rounded to nearest."""
    ctx = ts.tile.context()
    for m, n in ts.tile.grid((M, ctx.BM), (N, ctx.BN)):
        acc = ts.tile.zeros((ctx.BM, ctx.BN), ts.f32)
        for k in ts.tile.range(0, K, ctx.BK):
            acc = step_of_halves(acc, a, a_low, b, b_low, 0, m, n, k)
        out[m : m + ctx.BM, n : n + ctx.BN] = epilogue(acc, m, n)
    return out


def gemm_halves_batched(a: Any, a_low: Any, b: Any, b_low: Any, out: Any, epilogue: Any) -> Any:
    """Compute the same for a batch; an operand without one is the same for all."""
    ctx = ts.tile.context()
    for i, m, n in ts.tile.grid((B, 1), (M, ctx.BM), (N, ctx.BN)):
        acc = ts.tile.zeros((ctx.BM, ctx.BN), ts.f32)
        for k in ts.tile.range(0, K, ctx.BK):
            acc = step_of_halves(acc, a, a_low, b, b_low, i, m, n, k)
        out[i, m : m + ctx.BM, n : n + ctx.BN] = epilogue(acc, m, n, i)
    return out


@ts.function
def any_odd(odd: Any) -> Any:
    """Return whether any of some numbers is not 0."""
    most = ts.tile.zeros((1024,), ts.i32)
    for f in ts.tile.range(0, FLAGS, 1024):
        most = ts.tile.maximum(most, odd[f : f + 1024])
    return ts.tile.max(most) > 0


def gemm_again(a: Any, b: Any, odd: Any, out: Any, epilogue: Any) -> Any:
    """Compute `out = epilogue(a·b)` by multiply-adds where halves would not do, else nothing."""
    ctx = ts.tile.context()
    for m, n in ts.tile.grid((M, ctx.BM), (N, ctx.BN)):
        wanted = any_odd(odd)
        acc = ts.tile.zeros((ctx.BM, ctx.BN), ctx.acc)
        for k in ts.tile.range(0, K if wanted else 0, ctx.BK):
            acc = step(acc, left(a, 0, m, k), right(b, 0, k, n))
        if wanted:
            out[m : m + ctx.BM, n : n + ctx.BN] = epilogue(acc, m, n)
    return out


def gemm_again_batched(a: Any, b: Any, odd: Any, out: Any, epilogue: Any) -> Any:
    """Compute the same for a batch."""
    ctx = ts.tile.context()
    for i, m, n in ts.tile.grid((B, 1), (M, ctx.BM), (N, ctx.BN)):
        wanted = any_odd(odd)
        acc = ts.tile.zeros((ctx.BM, ctx.BN), ctx.acc)
        for k in ts.tile.range(0, K if wanted else 0, ctx.BK):
            acc = step(acc, left(a, i, m, k), right(b, i, k, n))
        if wanted:
            out[i, m : m + ctx.BM, n : n + ctx.BN] = epilogue(acc, m, n, i)
    return out
