"""The steps behind losses of vectors: results, kernels, gradients."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

from tessera.ops import arrays, rows
from tessera.ops.lengths import Lengths
from tessera.ops.loss import pair_kernels as kernels
from tessera.ops.loss import reductions, triplet_kernels
from tessera.ops.steps import Arguments, Gradient, Step, like, missing, present

_WIDEST = 1024
_TOGETHER = 4096
"""Elements of rows that a program takes whole, if there are so many programs."""
_WHOLE = {2: 8192, 3: 4096}
"""Elements of rows that are taken whole at most, where a loss has so many of them."""
_LENGTHS = {2: Lengths(), 3: Lengths()}
_PROGRAMS = 1024
_NARROWEST = 32
_ARRAYS = 3
"""Arrays that either loss takes."""


def block(width: int) -> int:
    """Return the columns that are looked at at a time."""
    return max(_NARROWEST, min(_WIDEST, 1 << max(width - 1, 0).bit_length()))


def blocks(count: int, width: int, operands: int, lengths: Lengths | None = None) -> dict[str, Any]:
    """Return the rows of a program, and how they are taken.

    Args:
        count: rows that there are.
        width: elements of one.
        operands: arrays of rows.
        lengths: widths that there were before; None leaves them out of account.
    """
    if width > _WHOLE[operands] or not width or (lengths is not None and lengths.are_many_before(width)):
        return {"whole": False, "BM": 1, "B": 2 * block(width)}
    several = max(min(_TOGETHER >> (width - 1).bit_length(), count // _PROGRAMS), 1)
    return {"whole": True, "BM": 1 << (several.bit_length() - 1), "B": 1}


def _blocks(x: Any, operands: int) -> dict[str, Any]:
    return blocks(int(x.shape[0]), int(x.shape[1]), operands, _LENGTHS[operands])


def power_of(p: float) -> int | str | None:
    """Return the exponent of a norm where kernels have it for themselves."""
    if p == inf:
        return "max"
    return int(p) if p in (0.0, 1.0, 2.0) else None


def _results(x: Any, reduced: bool, kept: int) -> Arguments:
    acc, count = rows.accumulator(arrays.dtype_of(x)), x.shape[0]
    return like(x, (1 if reduced else count,)), like(x, (kept, count), acc)


def _finish(out: Any, losses: Any, reduced: bool, divisor: int) -> None:
    if reduced:
        reductions.total(losses, None, out, None, reductions.scale(divisor), acc=arrays.dtype_of(losses))


def _losses(out: Any, x: Any, reduced: bool) -> Any:
    """Return where the losses of rows go."""
    return like(x, (x.shape[0],), rows.accumulator(arrays.dtype_of(x))) if reduced else out


def _cosine_results(x: Any, y: Any, target: Any, margin: float, reduced: bool, divisor: int) -> Arguments:
    return _results(x, reduced, 3)


def _launch_cosines(
    results: Arguments, x: Any, y: Any, target: Any, margin: float, reduced: bool, divisor: int
) -> None:
    out, stats = results
    if x.shape[0] == 0:
        reductions.fill(out, 0.0 * reductions.scale(divisor))
        return
    acc, losses = rows.accumulator(arrays.dtype_of(x)), _losses(out, x, reduced)
    kernels.cosines(x, y, target, losses, stats, margin, acc=acc, **_blocks(x, 2))
    _finish(out, losses, reduced, divisor)


def _cosine_gradient_results(
    grad: Any,
    x: Any,
    y: Any,
    target: Any,
    stats: Any,
    margin: float,
    reduced: bool,
    divisor: int,
    wanted: Sequence[bool],
) -> Arguments:
    return tuple(like(x, x.shape) if one else missing(x) for one in wanted)


def _launch_cosine_gradients(
    results: Arguments,
    grad: Any,
    x: Any,
    y: Any,
    target: Any,
    stats: Any,
    margin: float,
    reduced: bool,
    divisor: int,
    wanted: Sequence[bool],
) -> None:
    grad_x, grad_y = map(present, results)
    if not grad_x is grad_y is None:
        fixed: dict[str, Any] = {"acc": rows.accumulator(arrays.dtype_of(x)), "B": block(int(x.shape[1]))}
        kernels.cosine_gradients(
            grad, x, y, target, stats, grad_x, grad_y, margin, reductions.scale(divisor), reduced=reduced, **fixed
        )


COSINE_BACKWARD = Step(
    "cosine_embedding_loss_backward",
    "(Tensor grad, Tensor x, Tensor y, Tensor target, Tensor stats, float margin, bool reduced, SymInt divisor, "
    "bool[] wanted) -> (Tensor, Tensor)",
    _cosine_gradient_results,
    _launch_cosine_gradients,
)


def keep(given: Arguments, results: Arguments) -> Arguments:
    """Return what gradients are computed from: the arrays of a call, what is kept of rows, and the call's numbers."""
    return (*given[:_ARRAYS], results[1], *given[_ARRAYS:])


def _cosine_arguments(kept: Arguments, grads: Sequence[Any], needed: Sequence[bool]) -> Arguments:
    return (grads[0], *kept, list(needed[:2]))


def _cosine_gradients_of(kept: Arguments) -> tuple[int | None, ...]:
    return (0, 1, None, None, None, None)


COSINE = Step(
    "cosine_embedding_loss",
    "(Tensor x, Tensor y, Tensor target, float margin, bool reduced, SymInt divisor) -> (Tensor, Tensor)",
    _cosine_results,
    _launch_cosines,
    Gradient(COSINE_BACKWARD, keep, _cosine_arguments, _cosine_gradients_of),
)


def _triplet_results(
    anchor: Any,
    positive: Any,
    negative: Any,
    margin: float,
    p: float,
    eps: float,
    swap: bool,
    reduced: bool,
    divisor: int,
) -> Arguments:
    distances = 3 if swap else 2
    return _results(anchor, reduced, distances * (2 if power_of(p) == "max" else 1))


def _launch_triplets(
    results: Arguments,
    anchor: Any,
    positive: Any,
    negative: Any,
    margin: float,
    p: float,
    eps: float,
    swap: bool,
    reduced: bool,
    divisor: int,
) -> None:
    out, stats = results
    if anchor.shape[0] == 0:
        reductions.fill(out, 0.0 * reductions.scale(divisor))
        return
    acc, losses = rows.accumulator(arrays.dtype_of(anchor)), _losses(out, anchor, reduced)
    given = anchor, positive, negative, losses, stats, margin, p, eps
    triplet_kernels.triplets(*given, power=power_of(p), swap=swap, acc=acc, **_blocks(anchor, 3))
    _finish(out, losses, reduced, divisor)


def _triplet_gradient_results(
    grad: Any,
    anchor: Any,
    positive: Any,
    negative: Any,
    stats: Any,
    margin: float,
    p: float,
    eps: float,
    swap: bool,
    reduced: bool,
    divisor: int,
    wanted: Sequence[bool],
) -> Arguments:
    return tuple(like(anchor, anchor.shape) if one else missing(anchor) for one in wanted)


def _launch_triplet_gradients(
    results: Arguments,
    grad: Any,
    anchor: Any,
    positive: Any,
    negative: Any,
    stats: Any,
    margin: float,
    p: float,
    eps: float,
    swap: bool,
    reduced: bool,
    divisor: int,
    wanted: Sequence[bool],
) -> None:
    grad_anchor, grad_positive, grad_negative = map(present, results)
    if not grad_anchor is grad_positive is grad_negative is None:
        grads = grad_anchor, grad_positive, grad_negative
        given = grad, anchor, positive, negative, stats, *grads, margin, p, eps, reductions.scale(divisor)
        fixed: dict[str, Any] = {"acc": rows.accumulator(arrays.dtype_of(anchor)), "B": block(int(anchor.shape[1]))}
        triplet_kernels.triplet_gradients(*given, power=power_of(p), swap=swap, reduced=reduced, **fixed)


TRIPLET_BACKWARD = Step(
    "triplet_margin_loss_backward",
    "(Tensor grad, Tensor anchor, Tensor positive, Tensor negative, Tensor stats, float margin, float p, float eps, "
    "bool swap, bool reduced, SymInt divisor, bool[] wanted) -> (Tensor, Tensor, Tensor)",
    _triplet_gradient_results,
    _launch_triplet_gradients,
)


def _triplet_arguments(kept: Arguments, grads: Sequence[Any], needed: Sequence[bool]) -> Arguments:
    return (grads[0], *kept, list(needed[:3]))


def _triplet_gradients_of(kept: Arguments) -> tuple[int | None, ...]:
    return (0, 1, 2, None, None, None, None, None, None)


TRIPLET = Step(
    "triplet_margin_loss",
    "(Tensor anchor, Tensor positive, Tensor negative, float margin, float p, float eps, bool swap, bool reduced, "
    "SymInt divisor) -> (Tensor, Tensor)",
    _triplet_results,
    _launch_triplets,
    Gradient(TRIPLET_BACKWARD, keep, _triplet_arguments, _triplet_gradients_of),
)
