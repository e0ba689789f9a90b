"""The steps behind GroupNorm: results, kernels, gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.ops import arrays, rows
from tessera.ops.norm import group_kernels as kernels
from tessera.ops.steps import Arguments, Gradient, Step, like, present

_WIDEST = 1024
"""Elements of a channel that are added up at a time."""
ALIGNED = kernels.TOGETHER
"""Elements that begin where 16 bytes do, if numbers have two: rows of channels of so many are taken by channels."""
_LEAST_BLOCK, _MOST_BLOCK = 2048, 16384
_ROUNDS = 4
"""Blocks of a row at least, up to the largest block: longer rows are few at a time, so that caches hold them."""


LAST: dict[str, Any] = {"forward": kernels.forward}
"""The kernel that ran last."""


def _rows(x: Any, groups: int) -> Any:
    """Return samples as rows of groups."""
    samples, channels, size = x.shape
    return x.reshape(samples * groups, channels // groups * size)


def _by_channels(x: Any, groups: int) -> Any:
    """Return samples as rows of groups, channel by channel."""
    samples, channels, size = x.shape
    return x.reshape(samples * groups, channels // groups, size)


def _padded(size: int) -> int:
    return 1 << max(size - 1, 0).bit_length()


def blocks(channels: int, size: int) -> dict[str, int]:
    """Return the channels and elements of a block of a group of so many."""
    most = max(_LEAST_BLOCK, min(_MOST_BLOCK, _padded(channels * size) // _ROUNDS))
    along = min(most, _padded(size))
    return {"BK": min(most // along, _padded(channels)), "BS": along}


def _results(x: Any, weight: Any, bias: Any, groups: int, eps: float, keeps: bool) -> Arguments:
    acc = rows.accumulator(arrays.dtype_of(x))
    count = x.shape[0] * groups if keeps else 0
    return like(x, x.shape), like(x, (count,), acc), like(x, (count,), acc)


def _launch(results: Arguments, x: Any, weight: Any, bias: Any, groups: int, eps: float, keeps: bool) -> None:
    if 0 in x.shape:
        return
    out, mean, rstd = results[0], present(results[1]), present(results[2])
    size, acc = int(x.shape[2]), rows.accumulator(arrays.dtype_of(x))
    if size % ALIGNED:
        LAST["forward"] = kernels.forward
        kernels.forward(_rows(x, groups), weight, bias, _rows(out, groups), mean, rstd, groups, eps, S=size, acc=acc)
        return
    given, goal = _by_channels(x, groups), _by_channels(out, groups)
    flat, block = _rows(x, groups), blocks(int(given.shape[1]), size)
    LAST["forward"] = kernels.forward_by_channels
    kernels.forward_by_channels(
        flat, given, weight, bias, goal, mean, rstd, groups, eps, size=int(flat.shape[1]), acc=acc, **block
    )


def _gradient_results(
    grad: Any, x: Any, weight: Any, mean: Any, rstd: Any, groups: int, wanted: Sequence[bool], kind: Any
) -> Arguments:
    dtype = arrays.dtype_of(x if kind is None else kind)
    return like(x, x.shape), *(like(x, (x.shape[1] if one else 0,), dtype) for one in wanted)


def _launch_gradient(
    results: Arguments,
    grad: Any,
    x: Any,
    weight: Any,
    mean: Any,
    rstd: Any,
    groups: int,
    wanted: Sequence[bool],
    kind: Any,
) -> None:
    grad_x, *vectors = results
    if 0 in x.shape:
        for vector in vectors:
            arrays.zero(vector)
        return
    size, acc = int(x.shape[2]), rows.accumulator(arrays.dtype_of(x))
    of_weight, of_bias = map(present, vectors)
    if size % ALIGNED == 0:
        given, slopes, goal = (_by_channels(one, groups) for one in (x, grad, grad_x))
        sums = like(x, (2, *given.shape[:2]), acc)
        block = blocks(int(given.shape[1]), size)
        kernels.backward_by_channels(slopes, given, weight, mean, rstd, goal, sums, groups, acc=acc, **block)
        if any(wanted):
            kernels.joined(sums.reshape(2, x.shape[0], x.shape[1]), of_weight, of_bias, acc=acc)
        return
    flat = _rows(grad_x, groups)
    kernels.backward(_rows(grad, groups), _rows(x, groups), weight, mean, rstd, flat, groups, S=size, acc=acc)
    if any(wanted):
        middle, scale = mean.reshape(x.shape[0], groups), rstd.reshape(x.shape[0], groups)
        kernels.channel_sums(grad, x, middle, scale, of_weight, of_bias, acc=acc, BN=min(_WIDEST, _padded(size)))


BACKWARD = Step(
    "norm_groups_backward",
    "(Tensor grad, Tensor x, Tensor? weight, Tensor mean, Tensor rstd, int groups, bool[] wanted, Tensor? kind) "
    "-> (Tensor, Tensor, Tensor)",
    _gradient_results,
    _launch_gradient,
)


def _keep(given: Arguments, results: Arguments) -> Arguments:
    x, weight, bias, groups, *_ = given
    return x, weight, results[1], results[2], groups, bias if weight is None else weight


def _gradient_arguments(kept: Arguments, grads: Sequence[Any], needed: Sequence[bool]) -> Arguments:
    x, weight, mean, rstd, groups, kind = kept
    return rows.contiguous(grads[0]), x, weight, mean, rstd, groups, [needed[1], needed[2]], kind


FORWARD = Step(
    "norm_groups",
    "(Tensor x, Tensor? weight, Tensor? bias, int groups, float eps, bool keeps) -> (Tensor, Tensor, Tensor)",
    _results,
    _launch,
    Gradient(BACKWARD, _keep, _gradient_arguments, lambda _kept: (0, 1, 2, None, None, None)),
)
