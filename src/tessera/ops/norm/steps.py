"""The steps behind the norms of rows: results, kernels, gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.numerics.dtypes import BY_NAME, f32
from tessera.ops import arrays, rows
from tessera.ops.norm import kernels
from tessera.ops.steps import Arguments, Gradient, Step, like, missing, present, zeros

WIDEST_SUMS = 16384
"""Elements of rows from which on sums over rows are taken by columns: a program has no room for them beside its row.
Where rows are loaded ahead, each sum that is wanted counts."""

_BLOCK = 8192
_MOST_ROWS = 64
_LEAST_STAGED = 4096
"""Longer rows of a GPU with one sum over them pass through shared memory, and rows twice as long whatever is wanted."""
_ROOM, _COPIED = 8192, 16
"""Bytes of shared memory that are left for sums along rows, and of a copy to it, with which rows begin and end."""


def _results(
    x: Any,
    input_bias: Any,
    residual: Any,
    weight: Any,
    bias: Any,
    eps: Any,
    p: Any,
    seed: Any,
    centred: bool,
    keeps: bool,
) -> Arguments:
    is_summed = residual is not None or input_bias is not None or p > 0
    acc, count = rows.accumulator(arrays.dtype_of(x)), x.shape[0]
    return (
        like(x, x.shape),
        like(x, x.shape) if is_summed else missing(x),
        like(x, (count if keeps and centred else 0,), acc),
        like(x, (count if keeps else 0,), acc),
    )


def _launch(
    results: Arguments,
    x: Any,
    input_bias: Any,
    residual: Any,
    weight: Any,
    bias: Any,
    eps: float,
    p: float,
    seed: int,
    centred: bool,
    keeps: bool,
) -> None:
    if 0 in x.shape:
        return
    acc = rows.accumulator(arrays.dtype_of(x))
    out, summed, mean, rstd = map(present, results)
    kernels.forward(
        x, input_bias, residual, weight, bias, out, summed, mean, rstd, eps, p, seed, centred, drops=p > 0, acc=acc
    )


def _gradient_results(
    grad: Any,
    grad_summed: Any,
    x: Any,
    weight: Any,
    mean: Any,
    rstd: Any,
    p: float,
    seed: int,
    wanted: Sequence[bool],
    kind: Any,
) -> Arguments:
    dtype = arrays.dtype_of(x if kind is None else kind)
    sums = (like(x, (x.shape[1] if one else 0,), dtype) for one in wanted)
    return (like(x, x.shape), like(x, x.shape) if p > 0 else missing(x), *sums)


def _shares(x: Any, width: int) -> tuple[int, int, bool]:
    """Return what programs that share out sums over rows do.

    On a GPU one program of a multiprocessor has the sums in registers, and loads rows while it computes those before.

    Args:
        x: the rows.
        width: elements of one.

    Returns:
        Rows at a time, a power of two; programs of a multiprocessor; whether rows are loaded ahead.
    """
    if not rows.is_simt(x):
        return rows.together(width), 1, False
    return max(1, min(_BLOCK >> max(width - 1, 0).bit_length(), _MOST_ROWS)), 1, True


def _stages(x: Any, width: int, sums: int, adds: bool) -> int:
    """Return how many rows of both arrays a program of a GPU has in shared memory; 0 where they do not pass through it.

    Args:
        x: the rows.
        width: elements of one.
        sums: how many sums over rows are wanted, which are to leave half of the registers.
        adds: whether another array is added to the results, which has no place there.
    """
    record, size = rows.record_of(x), arrays.dtype_of(x).bytes
    least = _LEAST_STAGED if sums == 1 and not adds else 2 * _LEAST_STAGED
    fits = least < width <= WIDEST_SUMS and 2 * sums * width <= record.registers and size <= 4
    if not record.simt or not fits or width * size % _COPIED:
        return 0
    row = 2 * size << (width - 1).bit_length()
    return next((stages for stages in (4, 2) if stages * row + _ROOM <= record.shared_bytes), 0)


def _launch_gradient(
    results: Arguments,
    grad: Any,
    grad_summed: Any,
    x: Any,
    weight: Any,
    mean: Any,
    rstd: Any,
    p: float,
    seed: int,
    wanted: Sequence[bool],
    kind: Any,
) -> None:
    grad_x, grad_residual, *vectors = results
    if 0 in x.shape:
        for vector in vectors:
            arrays.zero(vector)
        return
    count, width = map(int, x.shape)
    acc, wanted = rows.accumulator(arrays.dtype_of(x)), tuple(wanted)
    options: dict[str, Any]
    given = (grad, grad_summed, x, weight, mean, rstd, grad_x, present(grad_residual))
    if not any(wanted):
        kernels.backward(*given, p, seed, drops=p > 0, acc=acc)
        return
    stages = _stages(x, width, sum(wanted), grad_summed is not None)
    together, of_unit, ahead = (1, 1, True) if stages else _shares(x, width)
    each = rows.share(count, width, x, of_unit, together)
    parts = like(x, (3, -(-count // each), width), acc)
    if stages:
        options = {"drops": p > 0, "wanted": wanted, "acc": acc, "kind": arrays.dtype_of(x), "stages": stages}
        kernels.backward_through_shared(*given, parts, each, p, seed, **options)
    elif width * (sum(wanted) if ahead else 1) <= WIDEST_SUMS:
        options = {"drops": p > 0, "wanted": wanted, "ahead": ahead, "acc": acc, "BM": together}
        kernels.backward_with_sums(*given, parts, each, p, seed, **options)
    else:
        kernels.backward(*given, p, seed, drops=p > 0, acc=acc)
        kernels.sums_by_columns(grad, x, mean, rstd, grad_x, parts, each, wanted=wanted, acc=acc)
    kernels.column_sums(parts, *(one if wanted[which] else None for which, one in enumerate(vectors)), acc=acc)


BACKWARD = Step(
    "norm_rows_backward",
    "(Tensor grad, Tensor? grad_summed, Tensor x, Tensor? weight, Tensor? mean, Tensor rstd, float p, SymInt seed, "
    "bool[] wanted, Tensor? kind) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _gradient_results,
    _launch_gradient,
)


def _keep(given: Arguments, results: Arguments) -> Arguments:
    x, input_bias, _residual, weight, bias, _eps, p, seed, *_ = given
    _out, summed, mean, rstd = map(present, results)
    kind = next((one for one in (weight, bias, input_bias) if one is not None), None)
    return x if summed is None else summed, weight, mean, rstd, p, seed, kind, summed is not None


def _gradient_arguments(kept: Arguments, grads: Sequence[Any], needed: Sequence[bool]) -> Arguments:
    x, weight, mean, rstd, p, seed, kind, is_summed = kept
    grad = zeros(x) if grads[0] is None else grads[0]
    grad_summed = grads[1] if is_summed else None
    return grad, grad_summed, x, weight, mean, rstd, p, seed, [needed[3], needed[4], needed[1]], kind


def _gradients_of(kept: Arguments) -> tuple[int | None, ...]:
    """Return the places of the gradients: without dropout that of the residual is that of the rows."""
    return (0, 4, 1 if kept[4] > 0 else 0, 2, 3, None, None, None, None, None)


FORWARD = Step(
    "norm_rows",
    "(Tensor x, Tensor? input_bias, Tensor? residual, Tensor? weight, Tensor? bias, float eps, float p, SymInt seed, "
    "bool centred, bool keeps) -> (Tensor, Tensor, Tensor, Tensor)",
    _results,
    _launch,
    Gradient(BACKWARD, _keep, _gradient_arguments, _gradients_of),
)


LARGEST = {"fp8_e4m3": 448.0, "fp8_e5m2": 57344.0}
"""The largest numbers of 8-bit dtypes."""


def _quantised_results(x: Any, *given: Any) -> Arguments:
    input_bias, residual, _weight, _bias, _eps, p, _seed, _centred, kind, block = given
    is_summed = residual is not None or input_bias is not None or p > 0
    scales = (x.shape[0], x.shape[1] // block if block else 0)
    return like(x, x.shape, BY_NAME[kind]), like(x, scales, f32), like(x, x.shape) if is_summed else missing(x)


def _launch_quantised(results: Arguments, x: Any, *given: Any) -> None:
    if 0 in x.shape:
        return
    input_bias, residual, weight, bias, eps, p, seed, centred, kind, block = given
    out, scales, summed = results[0], results[1], present(results[2])
    kernels.forward_quantised(
        x,
        input_bias,
        residual,
        weight,
        bias,
        out,
        scales,
        summed,
        eps,
        p,
        seed,
        centred,
        drops=p > 0,
        block=block,
        largest=LARGEST[kind],
        acc=rows.accumulator(arrays.dtype_of(x)),
    )


QUANTISED = Step(
    "norm_rows_quantised",
    "(Tensor x, Tensor? input_bias, Tensor? residual, Tensor? weight, Tensor? bias, float eps, float p, SymInt seed, "
    "bool centred, str kind, int block) -> (Tensor, Tensor, Tensor)",
    _quantised_results,
    _launch_quantised,
)
