"""Kernels of reductions: along rows and along a dimension in the middle, in parts where few programs would work."""

from __future__ import annotations

from typing import Any

import tessera as ts
from tessera.ops.annotations import F64, I64, Constant
from tessera.ops.signs import slope_of_size

FLOATS = (ts.bf16, ts.f16, ts.f32, ts.f64)
NUMBERS = (*FLOATS, ts.i8, ts.u8, ts.i16, ts.i32, ts.i64)
T = ts.dtype_var("T", *NUMBERS, ts.bool_)
Y = ts.dtype_var("Y", *NUMBERS)
S = ts.dtype_var("S", *NUMBERS)
C = ts.dtype_var("C", ts.f32, ts.f64)
A, N, B, P = ts.dims("A N B P")


@ts.function
def sized(x: Any, kind: Any) -> Any:
    """Return what is compared of elements."""
    return ts.tile.abs(x) if kind == "size" else x


@ts.function
def is_equal(x: Any, extreme: Any) -> Any:
    """Return which elements are as large as an extreme; all that are NaN are if it is."""
    known = extreme.to(x.dtype)
    return (x == known) | ((x != x) & (known != known))


@ts.function
def term(x: Any, middle: Any, inside: Any, kind: Any, power: Any) -> Any:
    """Return what an element adds to a sum; `power` is the exponent of a norm that has no kind of its own."""
    if kind == "present":
        return ts.tile.where(x == 0.0, 0.0, 1.0)
    if kind == "power":
        return ts.tile.where(x == 0.0, 0.0, ts.tile.pow(ts.tile.abs(x), power.to(x.dtype)))
    if kind == "abs":
        return ts.tile.abs(x)
    if kind == "square":
        return x * x
    if kind == "apart":
        return ts.tile.where(inside, (x - middle) * (x - middle), 0.0)
    if kind == "equal" or kind == "equal size":
        return ts.tile.where(inside & is_equal(sized(x, "size" if kind == "equal size" else ""), middle), 1.0, 0.0)
    return x


@ts.function
def closed(total: Any, divisor: Any, finish: Any) -> Any:
    """Return a result by its sum; `divisor` is what it is divided by, or the exponent of a norm."""
    if finish == "power":
        return ts.tile.where(total == 0.0, 0.0, ts.tile.pow(total, 1.0 / divisor.to(total.dtype)))
    if finish == "quotient":
        return total / divisor.to(total.dtype)
    return ts.tile.sqrt(total) if finish == "root" else total


@ts.function
def added(total: Any, x: Any, middle: Any, a: Any, first: Any, end: Any, kind: Any, power: Any) -> Any:
    """Return sums of rows from `a` on, a column for each of a block's, with what follows from `first` to `end`."""
    BA, BN = total.shape
    for n in ts.tile.range(first, end, BN):
        inside = (n + ts.tile.arange(BN, dtype=ts.i64) < x.shape[1])[None, :]
        centre = middle[a : a + BA][:, None] if middle is not None else None
        total = total + term(x[a : a + BA, n : n + BN].to(total.dtype), centre, inside, kind, power)
    return total


@ts.kernel
def row_sums(
    x: ts.Tensor[A, N, T],
    middle: ts.Tensor[A, S] | None,
    y: ts.Tensor[P, A, Y],
    each: I64,
    divisor: F64,
    kind: Constant,
    finish: Constant,
    acc: Constant,
    BA: Constant,
    BN: Constant,
):
    """Sums along rows, of `each` elements in each of P parts."""
    ts.assume(each % BN == 0)
    for p, a in ts.tile.grid((P, 1), (A, BA)):
        total = ts.tile.zeros((BA, BN), acc)
        total = added(total, x, middle, a, p * each, min((p + 1) * each, N), kind, divisor)
        y[p, a : a + BA] = closed(ts.tile.sum(total, 1), divisor, finish)


@ts.kernel
def long_row_sums(
    x: ts.Tensor[A, N, T],
    middle: ts.Tensor[A, S] | None,
    y: ts.Tensor[P, A, Y],
    each: I64,
    divisor: F64,
    kind: Constant,
    finish: Constant,
    acc: Constant,
    BA: Constant,
    BN: Constant,
    span: Constant,
):
    """Sums along rows as `row_sums`, of sums of `span` elements: the error grows with the terms of the longest sum."""
    ts.assume(each % BN == 0)
    for p, a in ts.tile.grid((P, 1), (A, BA)):
        total = ts.tile.zeros((BA, BN), acc)
        end = min((p + 1) * each, N)
        for first in ts.tile.range(p * each, end, span):
            part = ts.tile.zeros((BA, BN), acc)
            total = total + added(part, x, middle, a, first, min(first + span, end), kind, divisor)
        y[p, a : a + BA] = closed(ts.tile.sum(total, 1), divisor, finish)


@ts.kernel
def column_sums(
    x: ts.Tensor[A, N, B, T],
    middle: ts.Tensor[A, B, S] | None,
    y: ts.Tensor[P, A, B, Y],
    each: I64,
    divisor: F64,
    kind: Constant,
    finish: Constant,
    acc: Constant,
    BN: Constant,
    BB: Constant,
):
    """The same along a dimension in the middle."""
    ts.assume(each % BN == 0)
    for p, a, b in ts.tile.grid((P, 1), (A, 1), (B, BB)):
        total = ts.tile.zeros((BN, BB), acc)
        for n in ts.tile.range(p * each, min((p + 1) * each, N), BN):
            inside = (n + ts.tile.arange(BN, dtype=ts.i64) < N)[:, None]
            centre = middle[a, b : b + BB][None, :] if middle is not None else None
            total = total + term(x[a, n : n + BN, b : b + BB].to(acc), centre, inside, kind, divisor)
        y[p, a, b : b + BB] = closed(ts.tile.sum(total, 0), divisor, finish)


@ts.function
def is_above(a: Any, b: Any, kind: Any) -> Any:
    """Return whether `a` is in front of `b`: NaN is in front of all numbers."""
    order = a < b if kind == "min" else a > b
    return order | ((a != a) & (b == b))


@ts.function
def extreme(values: Any, places: Any, axis: Any, kind: Any) -> Any:
    """Return the extremes of a tile along an axis, with the first of their places as i64.

    Two reductions by one instruction each take half the time of one that moves elements and places together.
    """
    top = ts.tile.min(values, axis, keepdims=True) if kind == "min" else ts.tile.max(values, axis, keepdims=True)
    last = 2**31 - 1 if places.dtype == ts.i32 else 2**63 - 1
    here = ts.tile.where((values == top) | (values != values), places, last)  # NaN is there if the extreme is
    return ts.tile.max(top, axis), ts.tile.cast(ts.tile.min(here, axis), ts.i64)


@ts.kernel
def row_extremes(
    x: ts.Tensor[A, N, T],
    values: ts.Tensor[P, A, T],
    places: ts.Tensor[P, A, ts.i64],
    each: I64,
    kind: Constant,
    last: Constant,
    acc: Constant,
    at: Constant,
    BA: Constant,
    BN: Constant,
):
    """Extremes along rows and their places; `last` is behind all other numbers, places have the dtype `at`."""
    ts.assume(each % BN == 0)
    for p, a in ts.tile.grid((P, 1), (A, BA)):
        begin, end = p * each, min((p + 1) * each, N)
        steps = ts.tile.arange(BN, dtype=at)[None, :]
        best = sized(ts.tile.load(x[a : a + BA, begin : begin + BN], fill=last).to(acc), kind)
        where = ts.tile.broadcast_to(ts.tile.cast(begin, at) + steps, (BA, BN))
        for n in ts.tile.range(begin + BN, end, BN):
            block = sized(ts.tile.load(x[a : a + BA, n : n + BN], fill=last).to(acc), kind)
            chosen = is_above(block, best, kind)
            best = ts.tile.where(chosen, block, best)
            where = ts.tile.where(chosen, ts.tile.cast(n, at) + steps, where)
        value, place = extreme(best, where, 1, kind)
        values[p, a : a + BA] = value
        places[p, a : a + BA] = place


@ts.kernel
def column_extremes(
    x: ts.Tensor[A, N, B, T],
    known: ts.Tensor[A, N, B, ts.i64] | None,
    values: ts.Tensor[P, A, B, T],
    places: ts.Tensor[P, A, B, ts.i64],
    each: I64,
    kind: Constant,
    last: Constant,
    acc: Constant,
    at: Constant,
    BN: Constant,
    BB: Constant,
):
    """The same along a dimension in the middle; elements may have known places of their own, which then count."""
    ts.assume(each % BN == 0)
    for p, a, b in ts.tile.grid((P, 1), (A, 1), (B, BB)):
        begin, end = p * each, min((p + 1) * each, N)
        steps = ts.tile.arange(BN, dtype=at)[:, None]
        best = sized(ts.tile.load(x[a, begin : begin + BN, b : b + BB], fill=last).to(acc), kind)
        where = ts.tile.broadcast_to(ts.tile.cast(begin, at) + steps, (BN, BB))
        if known is not None:
            where = known[a, begin : begin + BN, b : b + BB].to(at)
        for n in ts.tile.range(begin + BN, end, BN):
            block = sized(ts.tile.load(x[a, n : n + BN, b : b + BB], fill=last).to(acc), kind)
            chosen = is_above(block, best, kind)
            best = ts.tile.where(chosen, block, best)
            place = known[a, n : n + BN, b : b + BB].to(at) if known is not None else ts.tile.cast(n, at) + steps
            where = ts.tile.where(chosen, place, where)
        value, place = extreme(best, where, 0, kind)
        values[p, a, b : b + BB] = value
        places[p, a, b : b + BB] = place


@ts.function
def slope(g: Any, x: Any, kept: Any, at: Any, factor: Any, kind: Any) -> Any:
    """Return gradients of elements by that of their result; `kept` is the result, its middle or its place."""
    if kind == "abs":
        return g * slope_of_size(x)
    if kind == "root":
        return ts.tile.where(kept == 0.0, 0.0, g * (x / kept))
    if kind == "power":
        found = g * slope_of_size(x) * ts.tile.pow(ts.tile.abs(x) / kept, factor - 1.0)
        return ts.tile.where((kept == 0.0) | ((x == 0.0) & (kept == kept)), 0.0, found)
    if kind == "apart":
        return g * (x - kept) * factor
    if kind == "place":
        return ts.tile.where(at == kept, g, 0.0)
    if kind == "equal":
        return ts.tile.where(is_equal(x, kept), g, 0.0)
    if kind == "equal size":
        return ts.tile.where(is_equal(ts.tile.abs(x), kept), g * slope_of_size(x), 0.0)
    return g * factor


@ts.kernel
def row_slopes(
    grad: ts.Tensor[A, Y],
    x: ts.Tensor[A, N, T] | None,
    kept: ts.Tensor[A, S] | None,
    shares: ts.Tensor[A, C] | None,
    grad_x: ts.Tensor[A, N, T],
    factor: F64,
    kind: Constant,
    acc: Constant,
    BA: Constant,
    BN: Constant,
):
    """Gradients of reductions of rows; where `shares` says how many elements share one, each has its part."""
    for a, n in ts.tile.grid((A, BA), (N, BN)):
        block = x[a : a + BA, n : n + BN].to(acc) if x is not None else None
        known = kept[a : a + BA][:, None] if kept is not None else None
        at = n + ts.tile.arange(BN, dtype=ts.i64)[None, :]
        g = grad[a : a + BA].to(acc)[:, None]
        if shares is not None:
            g = g / shares[a : a + BA][:, None]
        grad_x[a : a + BA, n : n + BN] = slope(g, block, known, at, factor.to(acc), kind)


@ts.kernel
def column_slopes(
    grad: ts.Tensor[A, B, Y],
    x: ts.Tensor[A, N, B, T] | None,
    kept: ts.Tensor[A, B, S] | None,
    shares: ts.Tensor[A, B, C] | None,
    grad_x: ts.Tensor[A, N, B, T],
    factor: F64,
    kind: Constant,
    acc: Constant,
    BN: Constant,
    BB: Constant,
):
    """Gradients of reductions along a dimension in the middle."""
    for a, n, b in ts.tile.grid((A, 1), (N, BN), (B, BB)):
        block = x[a, n : n + BN, b : b + BB].to(acc) if x is not None else None
        known = kept[a, b : b + BB][None, :] if kept is not None else None
        at = n + ts.tile.arange(BN, dtype=ts.i64)[:, None]
        g = grad[a, b : b + BB].to(acc)[None, :]
        if shares is not None:
            g = g / shares[a, b : b + BB][None, :]
        grad_x[a, n : n + BN, b : b + BB] = slope(g, block, known, at, factor.to(acc), kind)
