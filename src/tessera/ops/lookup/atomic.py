"""Elements that are put at places, or combined with what is there, by atomic operations."""

from __future__ import annotations

from typing import Any

from tessera.numerics.dtypes import DType, f64, i32, i64
from tessera.ops import arrays, rows
from tessera.ops.lookup import atomic_kernels as kernels
from tessera.ops.steps import like

WIDEST = 16
"""Elements of a row up to which this is faster than to sort tokens by their rows."""
KINDS = ("put", "sum", "max", "min")


def scatter(x: Any, index: Any, source: Any, out: Any, kind: str, in_order: bool) -> None:
    """Write rows, with those of a source put in their place or combined with them.

    Args:
        x: rows `(V, N)`.
        index: the row of each of the source `(L,)`; a number that is no row's is passed over.
        source: rows `(L, N)`.
        out: what is written, as `x`.
        kind: one of `KINDS`. Sums of floats depend on the order that they happen to be added up in.
        in_order: whether of elements that are put in one place the last one stays, rather than any.
    """
    width = int(x.shape[1])
    x, source, out = (one.reshape(-1) for one in (x, source, out))
    if kind == "put" and in_order:
        _put(x, index, source, out, width)
    elif kind == "put":
        out[...] = x
        kernels.put_any(index, source, out, width=width)
    elif kind == "sum":
        _add(x, index, source, out, width)
    else:
        _extremes(x, index, source, out, kind, width)


def _put(x: Any, index: Any, source: Any, out: Any, width: int) -> None:
    last = like(index, (int(x.shape[0]) // width,), i32)
    arrays.zero(last)
    kernels.last_of_rows(index, last)
    out[...] = x
    kernels.put(index, source, last, out, width=width)


def _add(x: Any, index: Any, source: Any, out: Any, width: int) -> None:
    dtype = arrays.dtype_of(x)
    acc = rows.accumulator(dtype) if dtype.is_float else _integer(dtype)
    if acc == dtype:
        out[...] = x
        kernels.add(index, source, out, width=width)
        return
    wide = like(x, x.shape, acc)
    kernels.converted(x, wide)
    kernels.add(index, source, wide, width=width)
    kernels.converted(wide, out)


def _extremes(x: Any, index: Any, source: Any, out: Any, kind: str, width: int) -> None:
    dtype = arrays.dtype_of(x)
    acc = rows.accumulator(dtype) if dtype.is_float else _integer(dtype)
    key = (i64 if acc == f64 else i32) if dtype.is_float else acc
    found = like(x, x.shape, key)
    kernels.keys(x, found, kind=kind, acc=acc)
    kernels.extremes(index, source, found, kind=kind, acc=acc, width=width)
    kernels.numbers(found, out, acc=acc)


def _integer(dtype: DType) -> DType:
    """Return the integers that atomic operations take, at least as wide as others."""
    return i64 if dtype == i64 else i32
