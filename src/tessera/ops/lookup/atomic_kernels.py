"""Kernels that put elements at places, or combine them with what is there, by atomic operations: no token is sorted.

Extremes and integers come out the same in any order. Which element is put last is found before any is put, where that
is asked for. Sums of floats depend on the order in their last bits.

A row of a tensor has `width` elements side by side, few of them; kernels go over single elements.
"""

from __future__ import annotations

from typing import Any

import tessera as ts
from tessera.ops.annotations import Constant

NUMBERS = (ts.bf16, ts.f16, ts.f32, ts.f64, ts.i8, ts.u8, ts.i16, ts.i32, ts.i64)
E = ts.dtype_var("E", *NUMBERS)
F = ts.dtype_var("F", *NUMBERS)
I = ts.dtype_var("I", ts.i64, ts.i32)  # noqa: E741
A = ts.dtype_var("A", ts.f32, ts.f64, ts.i32, ts.i64)
K = ts.dtype_var("K", ts.i32, ts.i64)
L, S, V, W = ts.dims("L S V W")


@ts.function
def place_of(index: Any, at: Any, elements: Any, width: Any) -> Any:
    """Return where an element of a source is put, -1 where its row is none.

    Args:
        index: rows, one for each row of the source.
        at: elements of the source.
        elements: of the tensor.
        width: elements of a row.
    """
    row = ts.tile.load(index[at // width], fill=-1).to(ts.i64)
    return ts.tile.where((row >= 0) & (row < elements // width), row * width + at % width, -1)


@ts.function
def key_of(x: Any, kind: Any, key: Any) -> Any:
    """Return integers that are ordered as floats are; NaN is the largest for a maximum, the smallest for a minimum.

    Args:
        x: f32 or f64, or integers of the result's dtype, which are their own.
        kind: `max` or `min`.
        key: dtype of the result, i32 or i64.
    """
    if x.dtype == key:
        return x
    bits = ts.tile.bitcast(x, key)
    largest = 2**31 - 1 if key == ts.i32 else 2**63 - 1
    ordered = ts.tile.where(bits < 0, bits ^ largest, bits)
    return ts.tile.where(x != x, largest if kind == "max" else -largest - 1, ordered)


@ts.function
def number_of(key: Any, acc: Any) -> Any:
    """Return the numbers that integers stand for: what `key_of` took, NaN for NaN."""
    if key.dtype == acc:
        return key
    largest = 2**31 - 1 if acc == ts.f32 else 2**63 - 1
    return ts.tile.bitcast(ts.tile.where(key < 0, key ^ largest, key), acc)


@ts.kernel
def converted(x: ts.Tensor[S, E], y: ts.Tensor[S, F], BE: Constant = 1024):
    """Give elements another dtype: the one that they are added up in, and back."""
    for e in ts.tile.grid((S, BE)):
        y[e : e + BE] = x[e : e + BE].to(y.dtype)


@ts.kernel
def add(index: ts.Tensor[L, I], source: ts.Tensor[W, E], out: ts.Tensor[S, A], width: Constant, BE: Constant = 1024):
    """Add each element to its place."""
    for e in ts.tile.grid((W, BE)):
        at = e + ts.tile.arange(BE, dtype=ts.i64)
        if at < W:
            ts.tile.atomic_add(out[place_of(index, at, S, width)], source[e : e + BE].to(out.dtype))


@ts.kernel
def keys(x: ts.Tensor[S, E], found: ts.Tensor[S, K], kind: Constant, acc: Constant, BE: Constant = 1024):
    """Give floats the integers that extremes are found of; integers are their own."""
    for e in ts.tile.grid((S, BE)):
        found[e : e + BE] = key_of(x[e : e + BE].to(acc), kind, found.dtype)


@ts.kernel
def extremes(
    index: ts.Tensor[L, I],
    source: ts.Tensor[W, E],
    found: ts.Tensor[S, K],
    kind: Constant,
    acc: Constant,
    width: Constant,
    BE: Constant = 1024,
):
    """Let each place have the extreme of its own element and of those that an index puts there."""
    for e in ts.tile.grid((W, BE)):
        at = e + ts.tile.arange(BE, dtype=ts.i64)
        if at < W:
            place = place_of(index, at, S, width)
            key = key_of(source[e : e + BE].to(acc), kind, found.dtype)
            if kind == "max":
                ts.tile.atomic_max(found[place], key)
            else:
                ts.tile.atomic_min(found[place], key)


@ts.kernel
def numbers(found: ts.Tensor[S, K], out: ts.Tensor[S, E], acc: Constant, BE: Constant = 1024):
    """Give integers back the numbers that they stand for."""
    for e in ts.tile.grid((S, BE)):
        out[e : e + BE] = number_of(found[e : e + BE], acc).to(out.dtype)


@ts.kernel
def last_of_rows(index: ts.Tensor[L, I], last: ts.Tensor[V, ts.i32], BL: Constant = 1024):
    """Find the last token of each row, counted from 1."""
    for t in ts.tile.grid((L, BL)):
        at = t + ts.tile.arange(BL, dtype=ts.i64)
        if at < L:
            ts.tile.atomic_max(last[index[t : t + BL]], (at + 1).to(ts.i32))


@ts.kernel
def put(
    index: ts.Tensor[L, I],
    source: ts.Tensor[W, E],
    last: ts.Tensor[V, ts.i32],
    out: ts.Tensor[S, E],
    width: Constant,
    BE: Constant = 1024,
):
    """Put the elements of those tokens that are the last of their rows."""
    for e in ts.tile.grid((W, BE)):
        at = e + ts.tile.arange(BE, dtype=ts.i64)
        row = ts.tile.load(index[at // width], fill=-1).to(ts.i64)
        counts = ts.tile.load(last[row], fill=0) == (at // width + 1).to(ts.i32)
        if (at < W) & counts:
            out[row * width + at % width] = source[e : e + BE]


@ts.kernel
def put_any(
    index: ts.Tensor[L, I], source: ts.Tensor[W, E], out: ts.Tensor[S, E], width: Constant, BE: Constant = 1024
):
    """Put each element in its place; of several for one place, any stays."""
    for e in ts.tile.grid((W, BE)):
        at = e + ts.tile.arange(BE, dtype=ts.i64)
        if at < W:
            out[place_of(index, at, S, width)] = source[e : e + BE]
