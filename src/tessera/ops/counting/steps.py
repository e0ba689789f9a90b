"""The steps behind ops that count: results and kernels. None of them has a gradient."""

from __future__ import annotations

from typing import Any

from tessera.numerics.dtypes import i32, i64, u8
from tessera.ops import arrays, rows
from tessera.ops.counting import kernels
from tessera.ops.running.steps import CUMSUM
from tessera.ops.steps import Arguments, Step, like


def _counts(x: Any, count: int) -> Any:
    """Return as many zeros: on GPUs, where they fit, in i32, which are added up in shared memory."""
    found = like(x, (count,), i32 if rows.is_simt(x) and int(x.shape[0]) < 2**31 else i64)
    arrays.zero(found)
    return found


def _count_results(x: Any, count: Any) -> Arguments:
    return (like(x, (count,), i64),)


def _launch_count(results: Arguments, x: Any, count: int) -> None:
    if not int(count):
        return
    counts = _counts(x, int(count))
    if 0 not in x.shape:
        kernels.numbers(x, counts)
    kernels.convert(counts, results[0])


COUNT = Step("bincount", "(Tensor x, SymInt count) -> Tensor", _count_results, _launch_count)


def _wide_results(x: Any) -> Arguments:
    return (like(x, x.shape, i64),)


def _launch_wide(results: Arguments, x: Any) -> None:
    if 0 not in x.shape:
        kernels.convert(x, results[0])


WIDE = Step("wide_integers", "(Tensor x) -> Tensor", _wide_results, _launch_wide)
"""Integers as i64."""


def _range_results(x: Any, bins: Any, low: float, high: float) -> Arguments:
    return (like(x, (bins,)),)


def _launch_ranges(results: Arguments, x: Any, bins: int, low: float, high: float) -> None:
    counts = _counts(x, int(bins))
    if 0 not in x.shape:
        kernels.ranges(x, counts, low, high, acc=rows.accumulator(arrays.dtype_of(x)))
    kernels.convert(counts, results[0])


RANGES = Step("histogram", "(Tensor x, SymInt bins, float low, float high) -> Tensor", _range_results, _launch_ranges)


def _place_results(x: Any) -> Arguments:
    return (like(x, (1, x.shape[0]), i64),)


def _launch_places(results: Arguments, x: Any) -> None:
    if 0 in x.shape:
        return
    flags = like(x, (1, x.shape[0]), u8)
    (kernels.starts if len(x.shape) == 1 else kernels.row_starts)(x, flags)
    CUMSUM.launch(results, flags, "i64")


PLACES = Step("run_places", "(Tensor x) -> Tensor", _place_results, _launch_places)
"""In which run of equal elements, or rows, each one is; the first is run 1."""


def _run_results(x: Any, places: Any, count: Any) -> Arguments:
    return like(x, (count, *x.shape[1:])), like(x, x.shape[:1], i64), like(x, (count,), i64)


def _launch_runs(results: Arguments, x: Any, places: Any, count: int) -> None:
    if 0 in x.shape:
        return
    values, inverse, counts = results
    first = like(x, (count,), i64)
    if len(x.shape) == 1:
        kernels.pick(x, places, values, first, inverse)
    else:
        kernels.pick(None, places, None, first, inverse)
        kernels.pick_rows(x, places, values)
    kernels.lengths(inverse, first, counts)


RUNS = Step("runs", "(Tensor x, Tensor places, SymInt count) -> (Tensor, Tensor, Tensor)", _run_results, _launch_runs)
"""Of each run its element, or row, and its length, and of each element the number of its run."""
