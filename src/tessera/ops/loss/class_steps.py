"""The steps behind cross entropy: results, kernels, gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.ops import arrays, rows
from tessera.ops.loss import class_kernels as kernels
from tessera.ops.loss import reductions
from tessera.ops.steps import Arguments, Gradient, Step, like, present

WIDEST = 2048
"""Logits that a program looks at at a time."""
_NARROWEST = 32


def block(width: int) -> int:
    """Return the logits of a row that are looked at at a time."""
    return max(_NARROWEST, min(WIDEST, 1 << (width - 1).bit_length()))


def row_losses(
    x: Any, target: Any, weight: Any, losses: Any, stats: Any, ignore_index: int, smoothing: float, z_loss: float
) -> None:
    """Compute the losses of rows, and what is kept of them for gradients."""
    acc = rows.accumulator(arrays.dtype_of(x))
    given = x, target, weight, losses, stats, ignore_index, smoothing, z_loss
    lowest = kernels.LOWEST[acc.name]
    kernels.forward(*given, smooths=smoothing > 0, lowest=lowest, acc=acc, B=block(int(x.shape[1])))


def row_gradients(
    grad: Any,
    whole: Any,
    x: Any,
    target: Any,
    weight: Any,
    stats: Any,
    grad_x: Any,
    ignore_index: int,
    smoothing: float,
    reduced: bool,
) -> None:
    """Compute the gradients of logits; `grad_x` may be `x`."""
    acc = rows.accumulator(arrays.dtype_of(x))
    given = grad, whole, x, target, weight, stats, grad_x, ignore_index, smoothing
    kernels.backward(*given, smooths=smoothing > 0, reduced=reduced, acc=acc, B=block(int(x.shape[1])))


def _results(
    x: Any,
    target: Any,
    weight: Any,
    ignore_index: int,
    smoothing: float,
    z_loss: float,
    reduction: str,
) -> Arguments:
    acc, count = rows.accumulator(arrays.dtype_of(x)), x.shape[0]
    out = like(x, (count if reduction == "none" else 1,))
    return out, like(x, (4, count), acc), like(x, (1 if reduction == "mean" else 0,), acc)


def _launch(
    results: Arguments,
    x: Any,
    target: Any,
    weight: Any,
    ignore_index: int,
    smoothing: float,
    z_loss: float,
    reduction: str,
) -> None:
    out, stats, whole = results
    count, acc = int(x.shape[0]), rows.accumulator(arrays.dtype_of(x))
    if count == 0:
        reductions.fill(out, float("nan") if reduction == "mean" else 0.0)
        reductions.fill(whole, 0.0)
        return
    losses = out if reduction == "none" else like(x, (count,), acc)
    row_losses(x, target, weight, losses, stats, ignore_index, smoothing, z_loss)
    if reduction != "none":
        shares = stats[3] if reduction == "mean" else None
        reductions.total(losses, shares, out, present(whole), 1.0, acc=acc)


def _gradient_results(
    grad: Any,
    x: Any,
    target: Any,
    weight: Any,
    stats: Any,
    whole: Any,
    ignore_index: int,
    smoothing: float,
    reduced: bool,
) -> Arguments:
    return (like(x, x.shape),)


def _launch_gradient(
    results: Arguments,
    grad: Any,
    x: Any,
    target: Any,
    weight: Any,
    stats: Any,
    whole: Any,
    ignore_index: int,
    smoothing: float,
    reduced: bool,
) -> None:
    if 0 not in x.shape:
        row_gradients(grad, whole, x, target, weight, stats, results[0], ignore_index, smoothing, reduced)


BACKWARD = Step(
    "cross_entropy_backward",
    "(Tensor grad, Tensor x, Tensor target, Tensor? weight, Tensor stats, Tensor? whole, int ignore_index, "
    "float smoothing, bool reduced) -> Tensor",
    _gradient_results,
    _launch_gradient,
)


def _keep(given: Arguments, results: Arguments) -> Arguments:
    x, target, weight, ignore_index, smoothing, _z_loss, reduction = given
    return x, target, weight, results[1], present(results[2]), ignore_index, smoothing, reduction != "none"


def _gradient_arguments(kept: Arguments, grads: Sequence[Any], needed: Sequence[bool]) -> Arguments:
    return (grads[0], *kept)


def _gradients_of(kept: Arguments) -> tuple[int | None, ...]:
    return (0, None, None, None, None, None, None)


FORWARD = Step(
    "cross_entropy",
    "(Tensor x, Tensor target, Tensor? weight, int ignore_index, float smoothing, float z_loss, str reduction) -> "
    "(Tensor, Tensor, Tensor)",
    _results,
    _launch,
    Gradient(BACKWARD, _keep, _gradient_arguments, _gradients_of),
)
