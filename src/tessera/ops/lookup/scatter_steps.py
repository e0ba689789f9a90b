"""The step behind what `torch.compile` scatters: rows that are added to others, or put in their place."""

from __future__ import annotations

from math import prod
from typing import Any

from tessera.numerics.dtypes import DType
from tessera.ops import arrays, rows
from tessera.ops.lookup import atomic, kernels
from tessera.ops.lookup.steps import are_many, blocks, by_rows, in_turn, on_cpu, runs
from tessera.ops.steps import Arguments, Step, like


def _results(x: Any, index: Any, source: Any, kind: str, in_order: bool) -> Arguments:
    return (like(x, x.shape),)


def _launch(results: Arguments, x: Any, index: Any, source: Any, kind: str, in_order: bool) -> None:
    (out,) = results
    if not prod(out.shape):
        return
    if not prod(source.shape):
        out[...] = x
        return
    if on_cpu(x):
        in_turn(x, index, source, out, kind)
        return
    dtype = arrays.dtype_of(x)
    if _is_atomic(int(x.shape[1]), dtype, kind, in_order):
        atomic.scatter(x, index, source, out, kind, in_order)
        return
    acc = rows.accumulator(dtype) if dtype.is_float else dtype
    count, width = map(int, x.shape)
    if width == 1:
        flat = x.reshape(-1), source.reshape(-1)
        kernels.scatter_elements(*flat, *by_rows(index, count, -1), out.reshape(-1), kind=kind, acc=acc)
        return
    options = {"adds": kind == "sum", "acc": acc, **blocks(x)}
    if are_many(x, index):
        out[...] = x
        kernels.scatter_runs(x, source, *runs(index, count, -1), out, **options)
    else:
        kernels.scatter_rows(x, source, *by_rows(index, count, -1), out, **options)


def _is_atomic(width: int, dtype: DType, kind: str, in_order: bool) -> bool:
    """Return whether rows are combined by atomic operations: narrow ones, and extremes of all."""
    if kind in ("max", "min"):
        return True
    return width <= atomic.WIDEST and kind in atomic.KINDS and not (in_order and kind == "sum" and dtype.is_float)


SCATTER = Step(
    "scatter_rows", "(Tensor x, Tensor index, Tensor source, str kind, bool in_order) -> Tensor", _results, _launch
)
"""Rows `(V, N)` of `x`, with those of `source` `(L, N)` added to the rows `(L,)` that an index says, in their order, or
the last one of each row in its place (`kind`: `sum` or `put`), or combined with it by `max` and `min`, rows of one
element by `prod` too. A number that is no row's is passed over. Unless it is wanted `in_order`, narrow rows of floats
are added up on GPUs in an order that differs from run to run, and any of those that are put in one place stays. On a
CPU the source may be one row `(1, N)`, which is taken each time."""
