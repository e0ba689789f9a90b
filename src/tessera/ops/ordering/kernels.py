"""Kernels of sorting and of the largest elements, along rows and along a dimension in the middle.

A program has all elements of a row at once.
"""

from __future__ import annotations

from typing import Any

import tessera as ts
from tessera.ops.annotations import Constant

T = ts.dtype_var("T", ts.bf16, ts.f16, ts.f32, ts.f64, ts.i8, ts.u8, ts.i16, ts.i32, ts.i64)
A, N, B, K = ts.dims("A N B K")


@ts.function
def behind(last: Any) -> Any:
    """Return what stands behind a row's elements: None is NaN, which is no constant of a kernel."""
    return float("nan") if last is None else last


@ts.function
def order(block: Any, kind: Any, top: Any, axis: Any) -> Any:
    """Return where the elements of a block come from in order: `top` of them, or all where it is None."""
    if top is None:
        return ts.tile.argsort(block, axis, kind == "max")
    _, at = ts.tile.topk(block, top, axis, kind == "max")
    return at


@ts.kernel
def rows(
    x: ts.Tensor[A, N, T],
    values: ts.Tensor[A, K, T],
    places: ts.Tensor[A, K, ts.i64],
    kind: Constant,
    last: Constant,
    top: Constant,
    BA: Constant,
    BN: Constant,
    BK: Constant,
):
    """Put rows in order, the largest first for `max`; `last` is behind all other numbers."""
    for a in ts.tile.grid((A, BA)):
        at = order(ts.tile.load(x[a : a + BA, 0:BN], fill=behind(last)), kind, top, 1)
        values[a : a + BA, 0:BK] = x[(a + ts.tile.arange(BA, dtype=ts.i64))[:, None], at]
        places[a : a + BA, 0:BK] = at


@ts.kernel
def columns(
    x: ts.Tensor[A, N, B, T],
    values: ts.Tensor[A, K, B, T],
    places: ts.Tensor[A, K, B, ts.i64],
    kind: Constant,
    last: Constant,
    top: Constant,
    BN: Constant,
    BB: Constant,
    BK: Constant,
):
    """The same along a dimension in the middle."""
    for a, b in ts.tile.grid((A, 1), (B, BB)):
        at = order(ts.tile.load(x[a, 0:BN, b : b + BB], fill=behind(last)), kind, top, 0)
        values[a, 0:BK, b : b + BB] = x[a, at, (b + ts.tile.arange(BB, dtype=ts.i64))[None, :]]
        places[a, 0:BK, b : b + BB] = at


@ts.kernel
def rows_backward(
    grad: ts.Tensor[A, K, T],
    places: ts.Tensor[A, K, ts.i64],
    grad_x: ts.Tensor[A, N, T],
    BA: Constant,
    BK: Constant,
):
    """Put gradients where their elements came from: no two to one place."""
    for a, k in ts.tile.grid((A, BA), (K, BK)):
        at = ts.tile.load(places[a : a + BA, k : k + BK], fill=-1)
        grad_x[(a + ts.tile.arange(BA, dtype=ts.i64))[:, None], at] = grad[a : a + BA, k : k + BK]


@ts.kernel
def columns_backward(
    grad: ts.Tensor[A, K, B, T],
    places: ts.Tensor[A, K, B, ts.i64],
    grad_x: ts.Tensor[A, N, B, T],
    BK: Constant,
    BB: Constant,
):
    """The same along a dimension in the middle."""
    for a, k, b in ts.tile.grid((A, 1), (K, BK), (B, BB)):
        at = ts.tile.load(places[a, k : k + BK, b : b + BB], fill=-1)
        column = b + ts.tile.arange(BB, dtype=ts.i64)[None, :]
        grad_x[a, at, column] = grad[a, k : k + BK, b : b + BB]
