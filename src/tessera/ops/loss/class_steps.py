"""The steps behind cross entropy: results, kernels, gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.numerics.dtypes import DType
from tessera.ops import arrays, rows
from tessera.ops.lengths import Lengths
from tessera.ops.loss import class_kernels as kernels
from tessera.ops.loss import reductions
from tessera.ops.steps import Arguments, Gradient, Step, like, present

BLOCK = 4096
"""Gradients that a program computes."""
WIDEST = 2048
"""Those of one row at most."""
_NARROWEST = 32
WIDEST_ROWS = 65536
"""Bytes of a row that a program holds, as it computes with it."""
_LENGTHS = Lengths()
LAST: dict[str, Any] = {"forward": kernels.forward}
"""The kernel that ran last."""


def blocks(width: int) -> dict[str, int]:
    """Return the rows and logits that a program computes gradients of."""
    along = max(_NARROWEST, min(WIDEST, 1 << (width - 1).bit_length()))
    return {"BM": BLOCK // along, "BV": along}


def row_losses(
    x: Any, target: Any, weight: Any, losses: Any, stats: Any, ignore_index: int, smoothing: float, z_loss: float
) -> None:
    """Compute the losses of rows, and what is kept of them for gradients."""
    acc = rows.accumulator(arrays.dtype_of(x))
    kernel, constants = forward_kernel(int(x.shape[1]), acc, _LENGTHS)
    LAST["forward"] = kernel
    kernel(x, target, weight, losses, stats, ignore_index, smoothing, z_loss, smooths=smoothing > 0, **constants)


def forward_kernel(width: int, acc: DType, lengths: Lengths | None = None) -> tuple[Any, dict[str, Any]]:
    """Return the kernel for rows of a width, and its constants.

    Args:
        width: logits of a row.
        acc: what is computed in.
        lengths: widths that there were before; None leaves them out of account.
    """
    if width * acc.bytes > WIDEST_ROWS or (lengths is not None and lengths.are_many_before(width)):
        return kernels.forward_wide, {"acc": acc, "lowest": kernels.LOWEST[acc.name]}
    return kernels.forward, {"acc": acc}


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
    first: int = 0,
    classes: int | None = None,
) -> None:
    """Compute the gradients of logits, of all classes or of those from `first` on; `grad_x` may be `x`."""
    acc, width = rows.accumulator(arrays.dtype_of(x)), int(x.shape[1])
    given = grad, whole, x, target, weight, stats, grad_x, first, width if classes is None else classes
    options: dict[str, Any] = {"smooths": smoothing > 0, "reduced": reduced, "acc": acc}
    kernels.backward(*given, ignore_index, smoothing, **options, **blocks(width))


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
