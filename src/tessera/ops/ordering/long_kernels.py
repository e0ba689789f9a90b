"""Kernels of rows that no program orders at once: runs in order, merged two by two."""

from __future__ import annotations

from typing import Any

import tessera as ts
from tessera.ops.annotations import I64, Constant
from tessera.ops.ordering.kernels import behind, order

T = ts.dtype_var("T", ts.bf16, ts.f16, ts.f32, ts.f64, ts.i8, ts.u8, ts.i16, ts.i32, ts.i64)
A, N, B, C, K = ts.dims("A N B C K")


@ts.function
def goes_before(one: Any, other: Any, kind: Any) -> Any:
    """Return whether elements belong before others and are not equal to them: NaN is the largest."""
    if kind == "max":
        return (one > other) | ((one != one) & (other == other))
    return (one < other) | ((one == one) & (other != other))


@ts.kernel
def runs(
    x: ts.Tensor[A, N, B, T],
    values: ts.Tensor[A, C, B, T],
    places: ts.Tensor[A, C, B, ts.i64],
    each: I64,
    kind: Constant,
    last: Constant,
    top: Constant,
    BN: Constant,
    BK: Constant,
):
    """Put every BN elements of a row in order, and store the first `each` of them and their places.

    Behind the end of a row stands `last`, at places that no element has.
    """
    for a, n, b in ts.tile.grid((A, 1), (N, BN), (B, 1)):
        at = order(ts.tile.load(x[a, n : n + BN, b], fill=behind(last)), kind, top, 0)
        found = ts.tile.load(x[a, n + at, b], fill=behind(last))
        first = n // BN * each
        if ts.tile.arange(BK, dtype=ts.i64) < each:
            values[a, first : first + BK, b] = found
            places[a, first : first + BK, b] = n + at


@ts.kernel
def merge(
    values: ts.Tensor[A, N, B, T],
    places: ts.Tensor[A, N, B, ts.i64],
    merged: ts.Tensor[A, N, B, T],
    merged_places: ts.Tensor[A, N, B, ts.i64],
    run: I64,
    steps: I64,
    kind: Constant,
    BN: Constant,
):
    """Merge runs of so many elements two by two: each element counts, by bisection, those of the other run before it.

    Equal elements keep their order: those of the first run come first.
    """
    for a, n, b in ts.tile.grid((A, 1), (N, BN), (B, 1)):
        at = n + ts.tile.arange(BN, dtype=ts.i64)
        own = values[a, n : n + BN, b]
        pair = at // (2 * run) * (2 * run)
        is_first = at - pair < run
        start = ts.tile.where(is_first, ts.tile.minimum(pair + run, N), pair)
        low, high = start, ts.tile.minimum(start + run, N)
        for _ in ts.tile.range(steps):
            middle = (low + high) // 2
            other = values[a, middle, b]
            counts = ts.tile.where(is_first, goes_before(other, own, kind), ~goes_before(own, other, kind))
            counts = counts & (low < high)
            high = ts.tile.where(counts, high, middle)
            low = ts.tile.where(counts, middle + 1, low)
        to = ts.tile.where(is_first, at, at - run) + (low - start)
        if at < N:
            merged[a, to, b] = own
            merged_places[a, to, b] = places[a, n : n + BN, b]


@ts.kernel
def follow(places: ts.Tensor[A, C, B, ts.i64], at: ts.Tensor[A, K, B, ts.i64], BN: Constant):
    """Replace places among candidates by those where the candidates come from."""
    for a, n, b in ts.tile.grid((A, 1), (K, BN), (B, 1)):
        at[a, n : n + BN, b] = places[a, at[a, n : n + BN, b], b]


@ts.kernel
def leading(
    values: ts.Tensor[A, N, B, T],
    places: ts.Tensor[A, N, B, ts.i64],
    some: ts.Tensor[A, K, B, T],
    some_places: ts.Tensor[A, K, B, ts.i64],
    BN: Constant,
):
    """Copy the first elements of an order, and their places."""
    for a, n, b in ts.tile.grid((A, 1), (K, BN), (B, 1)):
        some[a, n : n + BN, b] = values[a, n : n + BN, b]
        some_places[a, n : n + BN, b] = places[a, n : n + BN, b]
