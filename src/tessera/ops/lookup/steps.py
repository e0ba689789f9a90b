"""The steps behind `embedding`: results, kernels, gradients."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tessera.numerics.dtypes import f32, f64, i32
from tessera.ops import arrays, rows
from tessera.ops.lookup import kernels
from tessera.ops.steps import Arguments, Gradient, Step, like
from tessera.runtime.device import CPU

_BLOCK, _WIDEST, _LEAST_TOKENS = 2048, 1024, 4
"""Elements that a program adds up at a time; those of a row, and rows: as many as a token of a text has neighbours."""
_FEW = 16
"""Rows that are added to one in the mean, whose sum is as exact as one of shorter sums."""
_MANY = 2
"""Rows for each token, from which on programs are those of tokens: 100 000 rows of 64, of which 8192 have one, took 130
microseconds on an H200 by a program each."""
_WIDEST_IN_TURN = 256
"""Columns of a program that takes rows one after another."""


def _results(index: Any, weight: Any, padding: int) -> Arguments:
    return (like(weight, (index.shape[0], weight.shape[1])),)


def _launch(results: Arguments, index: Any, weight: Any, padding: int) -> None:
    if 0 not in results[0].shape:
        kernels.gather(index, weight, results[0])


def _gradient_results(grad: Any, index: Any, count: int, padding: int) -> Arguments:
    return (like(grad, (count, grad.shape[1])),)


def _launch_gradient(results: Arguments, grad: Any, index: Any, count: int, padding: int) -> None:
    (out,) = results
    if not prod(grad.shape):
        arrays.zero(out)
        return
    if not prod(out.shape):
        return
    if on_cpu(grad):
        in_turn(None, index, grad, out, "sum", padding)
        return
    acc = rows.accumulator(arrays.dtype_of(grad))
    if are_many(out, index):
        arrays.zero(out)
        kernels.scatter_runs(None, grad, *runs(index, int(count), padding), out, adds=True, acc=acc, **blocks(grad))
    else:
        kernels.row_sums(grad, *by_rows(index, int(count), padding), out, acc=acc, **blocks(grad))


def are_many(table: Any, index: Any) -> bool:
    """Return whether most rows of a table have no token, so that a program for each would do nothing."""
    return int(table.shape[0]) >= _MANY * int(index.shape[0])


def on_cpu(array: Any) -> bool:
    """Return whether an array is on a CPU."""
    return arrays.view(array, "an array").device.kind == CPU.kind


def in_turn(x: Any, index: Any, source: Any, out: Any, kind: str, padding: int = -1) -> None:
    """Take the rows of a source one after another.

    Sums and products of 16-bit numbers are rounded once, and sums of f32 where many are added to a row.

    Args:
        x: rows `(V, N)`, None for zeros.
        index: the row of each of the source.
        source: rows `(L, N)`, or `(1, N)` for one that is taken each time.
        out: what is written, as `x`.
        kind: how rows are combined with those that are there.
        padding: a row that does not count, -1 for none.
    """
    count, width = map(int, out.shape)
    given = arrays.dtype_of(source)
    acc = rows.accumulator(given) if given.is_float and kind in ("sum", "prod") else given
    if acc == f32 and kind == "sum" and int(index.shape[0]) > _FEW * count:
        acc = f64
    wide = out if acc == given else like(out, (count, width), acc)
    columns = min(_WIDEST_IN_TURN, 1 << (width - 1).bit_length())
    held = {"BV": max(1, _BLOCK // columns), "BN": columns}
    kernels.scatter_in_turn(x, index, source, wide, padding, kind=kind, acc=acc, **held)
    if wide is not out:
        kernels.rounded(wide, out, **held)


def blocks(grad: Any) -> dict[str, int]:
    """Return blocks of tokens and of elements: narrow rows take more tokens at a time."""
    width = min(_WIDEST, max(16, 1 << (int(grad.shape[1]) - 1).bit_length()))
    return {"BT": max(_LEAST_TOKENS, _BLOCK // width), "BN": width}


def by_rows(index: Any, count: int, padding: int) -> tuple[Any, Any, Any]:
    """Return the tokens in the order of their rows, and where those of each row begin and end among them.

    Args:
        index: the row of each token, a vector; one that is no row's does not count.
        count: how many rows there are.
        padding: a row that does not count, -1 for none.
    """
    keys, tokens = _sorted(index, count, padding)
    first, last = (like(index, (count,), i32) for _ in range(2))
    arrays.zero(first)
    arrays.zero(last)
    kernels.bounds(keys, first, last)
    return tokens, first, last


def runs(index: Any, count: int, padding: int) -> tuple[Any, Any, Any]:
    """Return the rows in order, the tokens that they are of, and for each row that has some where they end.

    Args:
        index: the row of each token, as for `by_rows`.
        count: how many rows there are.
        padding: a row that does not count, -1 for none.
    """
    keys, tokens = _sorted(index, count, padding)
    last = like(index, (count,), i32)
    kernels.bounds(keys, None, last)
    return keys, tokens, last


def _sorted(index: Any, count: int, padding: int) -> tuple[Any, Any]:
    """Return the rows in order, with those that do not count as the last, and the tokens that they are of."""
    length = int(index.shape[0])
    spare = [like(index, (length,), i32) for _ in range(4)]
    keys, tokens, to_keys, to_tokens = spare
    digits = 2**kernels.DIGIT
    counts, totals = like(index, (digits, -(-length // kernels.BLOCK)), i32), like(index, (digits,), i32)
    for shift in range(0, count.bit_length(), kernels.DIGIT):
        arrays.zero(counts)
        is_first = shift == 0
        kernels.count(index if is_first else keys, keys if is_first else None, counts, count, padding, shift=shift)
        kernels.places(counts, totals)
        kernels.starts(totals)
        kernels.move(keys, None if is_first else tokens, counts, totals, to_keys, to_tokens, shift=shift)
        keys, tokens, to_keys, to_tokens = to_keys, to_tokens, keys, tokens
    return keys, tokens


BACKWARD = Step(
    "embedding_backward",
    "(Tensor grad, Tensor index, SymInt count, int padding) -> Tensor",
    _gradient_results,
    _launch_gradient,
)


def _keep(given: Arguments, _results: Arguments) -> Arguments:
    index, weight, padding = given
    return index, weight.shape[0], padding


def _gradient_arguments(kept: Arguments, grads: Sequence[Any], _needed: Sequence[bool]) -> Arguments:
    return grads[0], *kept


def _gradients_of(_kept: Arguments) -> tuple[int | None, ...]:
    return None, 0, None


FORWARD = Step(
    "embedding",
    "(Tensor index, Tensor weight, int padding) -> Tensor",
    _results,
    _launch,
    Gradient(BACKWARD, _keep, _gradient_arguments, _gradients_of),
)
