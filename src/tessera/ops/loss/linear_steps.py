"""The steps behind `linear_cross_entropy`: chunks of classes, whose logits and their gradients share one buffer.

A first pass over the classes keeps of each row what softmax needs of it. The gradients' pass computes logits again. So
the gradient of a class's weights is complete with its chunk, and only that of `x` is added up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tessera.ops import arrays, rows
from tessera.ops.linalg import gemm
from tessera.ops.loss import class_kernels as kernels
from tessera.ops.loss import reductions
from tessera.ops.loss.class_steps import row_gradients
from tessera.ops.steps import Arguments, Gradient, Step, like, missing, present

_LEAST_CLASSES = 1024
"""Fewer in a chunk, and products of it are bound by what they move."""


def chunk_of(features: int, classes: int, chunk: int) -> int:
    """Return the classes of a chunk; by default their logits take as much memory as all of `x`, if that is enough."""
    return min(chunk if chunk > 0 else max(_LEAST_CLASSES, features), classes)


def _chunks(x: Any, weight: Any, chunk: int, memory: Any = None) -> Iterator[tuple[slice, Any]]:
    """Yield chunks of classes, with their logits in one buffer: in memory of the shape of `x`, if that is enough."""
    classes, features = int(weight.shape[0]), int(x.shape[1])
    size = chunk_of(features, classes, chunk)
    buffer = memory[:, :size] if memory is not None and size <= features else like(x, (int(x.shape[0]), size))
    for start in range(0, classes, size):
        at = slice(start, min(start + size, classes))
        logits = buffer[:, : at.stop - start]
        gemm(x, weight[at], trans_b=True, out=logits)
        yield at, logits


def _results(
    x: Any,
    weight: Any,
    target: Any,
    ignore_index: int,
    smoothing: float,
    z_loss: float,
    reduction: str,
    chunk: int,
) -> Arguments:
    acc, count = rows.accumulator(arrays.dtype_of(x)), x.shape[0]
    out = like(x, (count if reduction == "none" else 1,))
    return out, like(x, (4, count), acc), like(x, (1 if reduction == "mean" else 0,), acc)


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
) -> None:
    out, stats, whole = results
    count, acc = int(x.shape[0]), rows.accumulator(arrays.dtype_of(x))
    if count == 0:
        reductions.fill(out, float("nan") if reduction == "mean" else 0.0)
        arrays.zero(whole)
        return
    losses = out if reduction == "none" else like(x, (count,), acc)
    state, classes, smooths = like(x, (5, count), acc), int(weight.shape[0]), smoothing > 0
    options: dict[str, Any] = {"smooths": smooths, "acc": acc}
    for at, logits in _chunks(x, weight, chunk):
        first = at.start
        lowest = kernels.LOWEST[acc.name]
        kernels.begun(logits, target, state, first, is_first=first == 0, lowest=lowest, **options)
    kernels.ended(state, target, losses, stats, classes, ignore_index, smoothing, z_loss, **options)
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
    ignore_index: int,
    smoothing: float,
    reduced: bool,
    chunk: int,
    wanted: Sequence[bool],
) -> Arguments:
    return like(x, x.shape) if wanted[0] else missing(x), like(x, weight.shape) if wanted[1] else missing(x)


def _launch_gradient(
    results: Arguments,
    grad: Any,
    x: Any,
    weight: Any,
    target: Any,
    stats: Any,
    whole: Any,
    ignore_index: int,
    smoothing: float,
    reduced: bool,
    chunk: int,
    wanted: Sequence[bool],
) -> None:
    of_x, of_weight = map(present, results)
    acc, classes = rows.accumulator(arrays.dtype_of(x)), int(weight.shape[0])
    if not int(x.shape[0]):
        for one in results:
            arrays.zero(one)
        return
    total = None if of_x is None else like(x, x.shape, acc)
    for at, logits in _chunks(x, weight, chunk, of_x):  # the gradient of `x` is written at the end
        given = grad, whole, logits, target, None, stats, logits, ignore_index, smoothing, reduced
        row_gradients(*given, first=at.start, classes=classes)
        if of_weight is not None:
            gemm(logits, x, trans_a=True, out=of_weight[at])
        if total is not None and at.start == 0:
            gemm(logits, weight[at], out=total)
        elif total is not None:
            gemm(logits, weight[at], total, out=total, beta=1.0)
    if of_x is not None:
        of_x[...] = total


BACKWARD = Step(
    "linear_cross_entropy_backward",
    "(Tensor grad, Tensor x, Tensor weight, Tensor target, Tensor stats, Tensor? whole, int ignore_index, "
    "float smoothing, bool reduced, int chunk, bool[] wanted) -> (Tensor, Tensor)",
    _gradient_results,
    _launch_gradient,
)


def keep(given: Arguments, results: Arguments) -> Arguments:
    """Return what gradients are computed from."""
    x, weight, target, ignore_index, smoothing, _z_loss, reduction, chunk = given
    _out, stats, whole = results
    kept = x, weight, target, stats, whole if reduction == "mean" else None
    return (*kept, ignore_index, smoothing, reduction != "none", chunk)


def _gradient_arguments(kept: Arguments, grads: Sequence[Any], needed: Sequence[bool]) -> Arguments:
    return (grads[0], *kept, [needed[0], needed[1]])


def _gradients_of(kept: Arguments) -> tuple[int | None, ...]:
    return (0, 1, None, None, None, None, None, None)


FORWARD = Step(
    "linear_cross_entropy",
    "(Tensor x, Tensor weight, Tensor target, int ignore_index, float smoothing, float z_loss, str reduction, "
    "int chunk) -> (Tensor, Tensor, Tensor)",
    _results,
    _launch,
    Gradient(BACKWARD, keep, _gradient_arguments, _gradients_of),
)
