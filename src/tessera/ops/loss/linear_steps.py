"""The steps behind `linear_cross_entropy`: chunks of rows, whose logits and their gradients share one buffer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.ops import arrays, rows
from tessera.ops.linalg import gemm
from tessera.ops.loss import class_kernels as kernels
from tessera.ops.loss import reductions
from tessera.ops.loss.class_steps import row_gradients, row_losses
from tessera.ops.steps import Arguments, Gradient, Step, like, missing, present

_LEAST_ROWS = 128
"""Fewer in a chunk, and products of it are bound by reading the weight."""


def chunk_of(count: int, features: int, classes: int, chunk: int) -> int:
    """Return the rows of a chunk; by default their logits take about as much memory as all of `x`."""
    if chunk > 0:
        return min(chunk, count)
    wanted = max(_LEAST_ROWS, -(-count * features // classes))
    return min(count, 1 << (wanted - 1).bit_length())


def _unset_gradients(x: Any, weight: Any, wanted: Sequence[bool], of_weight: Any) -> Arguments:
    return (
        like(x, x.shape) if wanted[0] else missing(x),
        like(x, weight.shape, of_weight) if wanted[1] else missing(x),
    )


def _add_gradients(slopes: Any, part: Any, weight: Any, grad_x: Any, grad_weight: Any, is_first: bool) -> None:
    """Compute gradients of a chunk's rows, and add up that of the weight, by those of its logits."""
    if grad_x is not None:
        gemm(slopes, weight, out=grad_x)
    if grad_weight is not None and is_first:
        gemm(slopes, part, trans_a=True, out=grad_weight)
    elif grad_weight is not None:
        gemm(slopes, part, grad_weight, trans_a=True, out=grad_weight, beta=1.0)


def _results(
    x: Any,
    weight: Any,
    target: Any,
    ignore_index: int,
    smoothing: float,
    z_loss: float,
    reduction: str,
    chunk: int,
    wanted: Sequence[bool],
) -> Arguments:
    acc, count = rows.accumulator(arrays.dtype_of(x)), x.shape[0]
    out = like(x, (count if reduction == "none" else 1,))
    kept = like(x, (4, count), acc), like(x, (1 if reduction == "mean" else 0,), acc)
    return (out, *kept, *_unset_gradients(x, weight, wanted, acc))


def _launch(
    results: Arguments,
    x: Any,
    weight: Any,
    target: Any,
    ignore_index: int,
    smoothing: float,
    z_loss: float,
    reduction: str,
    chunk: int,
    wanted: Sequence[bool],
) -> None:
    out, stats, whole, *grads = results
    count, acc = int(x.shape[0]), rows.accumulator(arrays.dtype_of(x))
    if count == 0:
        reductions.fill(out, float("nan") if reduction == "mean" else 0.0)
        for one in (whole, *grads):
            arrays.zero(one)
        return
    grad_x, grad_weight = map(present, grads)
    losses = out if reduction == "none" else like(x, (count,), acc)
    size = chunk_of(count, int(x.shape[1]), int(weight.shape[0]), chunk)
    buffer = like(x, (size, weight.shape[0]))
    for start in range(0, count, size):
        at = slice(start, min(start + size, count))
        part, classes, kept = x[at], target[at], stats[:, at]
        logits = buffer[: part.shape[0]]
        gemm(part, weight, trans_b=True, out=logits)
        row_losses(logits, classes, None, losses[at], kept, ignore_index, smoothing, z_loss)
        if any(wanted):
            row_gradients(None, None, logits, classes, None, kept, logits, ignore_index, smoothing, True)
            _add_gradients(logits, part, weight, None if grad_x is None else grad_x[at], grad_weight, start == 0)
    if reduction != "none":
        shares = stats[3] if reduction == "mean" else None
        reductions.total(losses, shares, out, present(whole), 1.0, acc=acc)


def _gradient_results(
    grad: Any,
    x: Any,
    weight: Any,
    target: Any,
    stats: Any,
    whole: Any,
    grad_x: Any,
    grad_weight: Any,
    ignore_index: int,
    smoothing: float,
    reduced: bool,
    chunk: int,
    wanted: Sequence[bool],
) -> Arguments:
    return _unset_gradients(x, weight, wanted, None)


def _launch_gradient(
    results: Arguments,
    grad: Any,
    x: Any,
    weight: Any,
    target: Any,
    stats: Any,
    whole: Any,
    grad_x: Any,
    grad_weight: Any,
    ignore_index: int,
    smoothing: float,
    reduced: bool,
    chunk: int,
    wanted: Sequence[bool],
) -> None:
    of_x, of_weight = map(present, results)
    acc, count = rows.accumulator(arrays.dtype_of(x)), int(x.shape[0])
    if count == 0:
        for one in results:
            arrays.zero(one)
        return
    known = [(grad_x, of_x), (grad_weight, of_weight)]
    if all(sums is not None for sums, out in known if out is not None):
        for sums, out in known:
            if out is not None:
                kernels.scaled(sums, grad, whole, out, acc=acc)
        return
    total = None if of_weight is None else like(x, weight.shape, acc)
    size = chunk_of(count, int(x.shape[1]), int(weight.shape[0]), chunk)
    buffer = like(x, (size, weight.shape[0]))
    for start in range(0, count, size):
        at = slice(start, min(start + size, count))
        part, logits = x[at], buffer[: min(size, count - start)]
        gemm(part, weight, trans_b=True, out=logits)
        g = grad if reduced else grad[at]
        row_gradients(g, whole, logits, target[at], None, stats[:, at], logits, ignore_index, smoothing, reduced)
        _add_gradients(logits, part, weight, None if of_x is None else of_x[at], total, start == 0)
    if of_weight is not None:
        of_weight[...] = total


BACKWARD = Step(
    "linear_cross_entropy_backward",
    "(Tensor grad, Tensor x, Tensor weight, Tensor target, Tensor stats, Tensor? whole, Tensor? grad_x, "
    "Tensor? grad_weight, int ignore_index, float smoothing, bool reduced, int chunk, bool[] wanted) -> "
    "(Tensor, Tensor)",
    _gradient_results,
    _launch_gradient,
)


def keep(given: Arguments, results: Arguments) -> Arguments:
    """Return what gradients are computed from."""
    x, weight, target, ignore_index, smoothing, _z_loss, reduction, chunk, wanted = given
    _out, stats, whole, grad_x, grad_weight = results
    # Of rows apart, no gradient is known before that of their losses.
    sums = (one if is_wanted else None for one, is_wanted in zip((grad_x, grad_weight), wanted, strict=True))
    kept = x, weight, target, stats, whole if reduction == "mean" else None
    return (*kept, *sums, ignore_index, smoothing, reduction != "none", chunk)


def _gradient_arguments(kept: Arguments, grads: Sequence[Any], needed: Sequence[bool]) -> Arguments:
    return (grads[0], *kept, [needed[0], needed[1]])


def _gradients_of(kept: Arguments) -> tuple[int | None, ...]:
    return (0, 1, None, None, None, None, None, None, None)


FORWARD = Step(
    "linear_cross_entropy",
    "(Tensor x, Tensor weight, Tensor target, int ignore_index, float smoothing, float z_loss, str reduction, "
    "int chunk, bool[] wanted) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _results,
    _launch,
    Gradient(BACKWARD, keep, _gradient_arguments, _gradients_of),
)
