"""The steps behind cross entropy with probabilities of classes: results, kernels, gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.numerics.dtypes import DType
from tessera.ops import arrays, rows
from tessera.ops.lengths import Lengths
from tessera.ops.loss import reductions
from tessera.ops.loss import soft_kernels as kernels
from tessera.ops.loss.class_kernels import LOWEST
from tessera.ops.loss.class_steps import LAST, WIDEST_ROWS, blocks
from tessera.ops.steps import Arguments, Gradient, Step, like, missing, present

_LENGTHS = Lengths()
_ROWS = 2
"""Rows of numbers that a program holds: logits and probabilities."""


def forward_kernel(width: int, acc: DType, lengths: Lengths | None = None) -> tuple[Any, dict[str, Any]]:
    """Return the kernel for rows of a width, and its constants.

    Args:
        width: logits of a row.
        acc: what is computed in.
        lengths: widths that there were before; None leaves them out of account.
    """
    if _ROWS * width * acc.bytes > WIDEST_ROWS or (lengths is not None and lengths.are_many_before(width)):
        return kernels.forward_wide, {"acc": acc, "lowest": LOWEST[acc.name]}
    return kernels.forward, {"acc": acc}


def _results(
    x: Any, target: Any, weight: Any, smoothing: float, z_loss: float, reduced: bool, divisor: int
) -> Arguments:
    count = x.shape[0]
    return like(x, (1 if reduced else count,)), like(x, (3, count), rows.accumulator(arrays.dtype_of(x)))


def _launch(
    results: Arguments,
    x: Any,
    target: Any,
    weight: Any,
    smoothing: float,
    z_loss: float,
    reduced: bool,
    divisor: int,
) -> None:
    out, stats = results
    count, acc = int(x.shape[0]), rows.accumulator(arrays.dtype_of(x))
    if count == 0:
        reductions.fill(out, 0.0 * reductions.scale(divisor))
        return
    losses = like(x, (count,), acc) if reduced else out
    kernel, constants = forward_kernel(int(x.shape[1]), acc, _LENGTHS)
    LAST["forward"] = kernel
    kernel(x, target, weight, losses, stats, smoothing, z_loss, smooths=smoothing > 0, **constants)
    if reduced:
        reductions.total(losses, None, out, None, reductions.scale(divisor), acc=acc)


def _gradient_results(
    grad: Any,
    x: Any,
    target: Any,
    weight: Any,
    stats: Any,
    smoothing: float,
    z_loss: float,
    reduced: bool,
    divisor: int,
    wanted: Sequence[bool],
) -> Arguments:
    return tuple(
        like(one, one.shape) if wants else missing(one) for one, wants in zip((x, target), wanted, strict=True)
    )


def _launch_gradient(
    results: Arguments,
    grad: Any,
    x: Any,
    target: Any,
    weight: Any,
    stats: Any,
    smoothing: float,
    z_loss: float,
    reduced: bool,
    divisor: int,
    wanted: Sequence[bool],
) -> None:
    grad_x, grad_target = map(present, results)
    if grad_x is grad_target is None:
        return
    options: dict[str, Any] = {"smooths": smoothing > 0, "reduced": reduced, **blocks(int(x.shape[1]))}
    given = grad, x, target, weight, stats, grad_x, grad_target, smoothing, z_loss, reductions.scale(divisor)
    kernels.backward(*given, acc=rows.accumulator(arrays.dtype_of(x)), **options)


BACKWARD = Step(
    "soft_cross_entropy_backward",
    "(Tensor grad, Tensor x, Tensor target, Tensor? weight, Tensor stats, float smoothing, float z_loss, bool reduced, "
    "SymInt divisor, bool[] wanted) -> (Tensor, Tensor)",
    _gradient_results,
    _launch_gradient,
)


def keep(given: Arguments, results: Arguments) -> Arguments:
    """Return what gradients are computed from."""
    return (*given[:3], results[1], *given[3:])


def _gradient_arguments(kept: Arguments, grads: Sequence[Any], needed: Sequence[bool]) -> Arguments:
    return (grads[0], *kept, [needed[0], needed[1]])


def _gradients_of(kept: Arguments) -> tuple[int | None, ...]:
    return (0, 1, None, None, None, None, None)


FORWARD = Step(
    "soft_cross_entropy",
    "(Tensor x, Tensor target, Tensor? weight, float smoothing, float z_loss, bool reduced, SymInt divisor) -> "
    "(Tensor, Tensor)",
    _results,
    _launch,
    Gradient(BACKWARD, keep, _gradient_arguments, _gradients_of),
)
