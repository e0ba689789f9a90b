"""The steps behind `conv1d`: results, kernels, gradients."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tessera.ops import approximations, arrays, rows
from tessera.ops.sequence import conv_kernels as kernels
from tessera.ops.steps import Arguments, Gradient, Step, like, missing

_CHANNELS, _TIMES = 4, 256
"""That a program sums up over at once."""
_PROGRAMS_A_UNIT = 16


def _rough(x: Any) -> str:
    return approximations.suffice(arrays.dtype_of(x), rows.is_simt(x))


def _results(x: Any, weight: Any, bias: Any, activates: bool) -> Arguments:
    return (like(x, x.shape),)


def _launch(results: Arguments, x: Any, weight: Any, bias: Any, activates: bool) -> None:
    if prod(x.shape):
        options = {"taps": int(weight.shape[1]), "rough": _rough(x), "acc": rows.accumulator(arrays.dtype_of(x))}
        kernels.forward(x, weight, bias, results[0], activates=activates, **options)


def _gradient_results(grad: Any, x: Any, weight: Any, bias: Any, activates: bool) -> Arguments:
    return like(x, x.shape), like(weight, weight.shape), missing(x) if bias is None else like(bias, bias.shape)


def _launch_gradient(results: Arguments, grad: Any, x: Any, weight: Any, bias: Any, activates: bool) -> None:
    of_x, of_weight, of_bias = results
    if not prod(x.shape):
        arrays.zero(of_weight)
        arrays.zero(of_bias)
        return
    acc, taps = rows.accumulator(arrays.dtype_of(x)), int(weight.shape[1])
    batches, channels, length = map(int, x.shape)
    steps = batches * -(-length // _TIMES)
    most = max(1, rows.most_programs(x, _PROGRAMS_A_UNIT) // -(-channels // _CHANNELS))
    each = -(-steps // min(most, steps))
    parts = -(-steps // each)
    weights, biases = like(x, (parts, channels, taps), acc), like(x, (parts, channels, 1), acc)
    inner = like(x, x.shape) if activates else None
    options: dict[str, Any] = {"taps": taps, "acc": acc, "BD": _CHANNELS, "BL": _TIMES}
    kernels.weight_gradients(grad, x, weight, bias, inner, weights, biases, each, rough=_rough(x), **options)
    kernels.joined(weights, of_weight, acc=acc)
    if bias is not None:
        kernels.joined(biases, of_bias[:, None], acc=acc)
    kernels.input_gradient(grad if inner is None else inner, weight, of_x, taps=taps, acc=acc)


BACKWARD = Step(
    "conv1d_backward",
    "(Tensor grad, Tensor x, Tensor weight, Tensor? bias, bool activates) -> (Tensor, Tensor, Tensor)",
    _gradient_results,
    _launch_gradient,
)


def _keep(given: Arguments, _results: Arguments) -> Arguments:
    return given


def _gradient_arguments(kept: Arguments, grads: Sequence[Any], _needed: Sequence[bool]) -> Arguments:
    return grads[0], *kept


def _gradients_of(kept: Arguments) -> tuple[int | None, ...]:
    return 0, 1, None if kept[2] is None else 2, None


FORWARD = Step(
    "conv1d",
    "(Tensor x, Tensor weight, Tensor? bias, bool activates) -> Tensor",
    _results,
    _launch,
    Gradient(BACKWARD, _keep, _gradient_arguments, _gradients_of),
)
