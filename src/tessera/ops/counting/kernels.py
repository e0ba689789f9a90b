"""Kernels that count: numbers, elements of ranges, and elements that repeat."""

from __future__ import annotations

from typing import Any

import tessera as ts
from tessera.ops.annotations import F64, Constant

INTEGERS = (ts.i8, ts.u8, ts.i16, ts.i32, ts.i64)
I = ts.dtype_var("I", *INTEGERS)  # noqa: E741
F = ts.dtype_var("F", ts.bf16, ts.f16, ts.f32, ts.f64)
T = ts.dtype_var("T", ts.bf16, ts.f16, ts.f32, ts.f64, *INTEGERS)
N = ts.dtype_var("N", ts.i32, ts.i64)
Y = ts.dtype_var("Y", ts.bf16, ts.f16, ts.f32, ts.f64, ts.i64)
A, L, C, K = ts.dims("A L C K")


@ts.kernel
def numbers(x: ts.Tensor[L, I], counts: ts.Tensor[C, N], BL: Constant = 256):
    """Count how often each number is there."""
    for t in ts.tile.grid((L, BL)):
        if t + ts.tile.arange(BL, dtype=ts.i64) < L:
            ts.tile.atomic_add(counts[x[t : t + BL].to(ts.i64)], 1)


@ts.kernel
def ranges(x: ts.Tensor[L, F], counts: ts.Tensor[C, N], low: F64, high: F64, acc: Constant, BL: Constant = 256):
    """Count the elements of ranges of one width from `low` to `high`, which is in the last."""
    for t in ts.tile.grid((L, BL)):
        first, last = low.to(acc), high.to(acc)
        value = x[t : t + BL].to(acc)
        inside = (t + ts.tile.arange(BL, dtype=ts.i64) < L) & (value >= first) & (value <= last)
        place = (ts.tile.where(inside, value, first) - first) * C / (last - first)
        if inside:
            ts.tile.atomic_add(counts[ts.tile.minimum(place.to(ts.i64), C - 1)], 1)


@ts.kernel
def convert(x: ts.Tensor[L, I], y: ts.Tensor[L, Y], BL: Constant = 1024):
    """Copy numbers to another dtype."""
    for t in ts.tile.grid((L, BL)):
        y[t : t + BL] = x[t : t + BL]


@ts.kernel
def starts(x: ts.Tensor[L, T], flags: ts.Tensor[A, L, ts.u8], BL: Constant = 1024):
    """Mark the elements that differ from the one before."""
    for t in ts.tile.grid((L, BL)):
        at = t + ts.tile.arange(BL, dtype=ts.i64)
        flags[0, t : t + BL] = ((at == 0) | (x[t : t + BL] != x[at - 1])).to(ts.u8)


@ts.kernel
def row_starts(x: ts.Tensor[L, K, T], flags: ts.Tensor[A, L, ts.u8], BL: Constant = 16, BK: Constant = 64):
    """Mark the rows that differ from the one before."""
    for t in ts.tile.grid((L, BL)):
        at = t + ts.tile.arange(BL, dtype=ts.i64)
        found = ts.tile.zeros((BL,), ts.i32)
        for k in ts.tile.range(0, K, BK):
            columns = k + ts.tile.arange(BK, dtype=ts.i64)[None, :]
            differs: Any = x[t : t + BL, k : k + BK] != ts.tile.load(x[at[:, None] - 1, columns])
            found = ts.tile.maximum(found, ts.tile.max(differs.to(ts.i32), 1))
        flags[0, t : t + BL] = ((at == 0) | (found > 0)).to(ts.u8)


@ts.kernel
def pick_rows(x: ts.Tensor[L, K, T], places: ts.Tensor[A, L, ts.i64], values: ts.Tensor[C, K, T], BK: Constant = 512):
    """Take the first row of each run; places count from 1."""
    for t, k in ts.tile.grid((L, 1), (K, BK)):
        place = places[0, t] - 1
        if place != places[0, t - 1] - 1:
            values[place, k : k + BK] = x[t, k : k + BK]


@ts.kernel
def pick(
    x: ts.Tensor[L, T] | None,
    places: ts.Tensor[A, L, ts.i64],
    values: ts.Tensor[C, T] | None,
    first: ts.Tensor[C, ts.i64],
    inverse: ts.Tensor[L, ts.i64],
    BL: Constant = 1024,
):
    """Take the first element of each run, if there are elements, and its place; places count from 1."""
    for t in ts.tile.grid((L, BL)):
        at = t + ts.tile.arange(BL, dtype=ts.i64)
        place = places[0, t : t + BL] - 1
        inverse[t : t + BL] = place
        if (at < L) & (place != ts.tile.load(places[0, at - 1]) - 1):
            if x is not None and values is not None:
                values[place] = x[t : t + BL]
            first[place] = at


@ts.kernel
def lengths(
    inverse: ts.Tensor[L, ts.i64], first: ts.Tensor[C, ts.i64], counts: ts.Tensor[C, ts.i64], BC: Constant = 1024
):
    """Count the elements of each run."""
    for c in ts.tile.grid((C, BC)):
        behind = ts.tile.load(first[c + 1 + ts.tile.arange(BC, dtype=ts.i64)], fill=L)
        counts[c : c + BC] = behind - first[c : c + BC]
