"""The steps behind gated activations: results, kernels, gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.ops import arrays, rows
from tessera.ops.activation import kernels
from tessera.ops.steps import Arguments, Gradient, Step, like, missing


def halves(gate: Any, up: Any) -> tuple[Any, Any]:
    """Return gate and up; without `up`, the halves of the rows of `gate`."""
    if up is not None:
        return gate, up
    width = gate.shape[1] // 2
    return gate[:, :width], gate[:, width:]


def _results(gate: Any, up: Any, act: str) -> Arguments:
    rows_, width = gate.shape
    return (like(gate, (rows_, width if up is not None else width // 2)),)


def _launch(results: Arguments, gate: Any, up: Any, act: str) -> None:
    if 0 not in results[0].shape:
        acc = rows.accumulator(arrays.dtype_of(gate))
        kernels.forward(*halves(gate, up), results[0], act=act, acc=acc)


def _gradient_results(grad: Any, gate: Any, up: Any, act: str) -> Arguments:
    return like(gate, gate.shape), missing(gate) if up is None else like(up, up.shape)


def _launch_gradient(results: Arguments, grad: Any, gate: Any, up: Any, act: str) -> None:
    if 0 not in grad.shape:
        found = results if up is not None else halves(results[0], None)
        acc = rows.accumulator(arrays.dtype_of(gate))
        kernels.backward(grad, *halves(gate, up), *found, act=act, acc=acc)


BACKWARD = Step(
    "glu_backward",
    "(Tensor grad, Tensor gate, Tensor? up, str act) -> (Tensor, Tensor)",
    _gradient_results,
    _launch_gradient,
)


def _keep(given: Arguments, _results: Arguments) -> Arguments:
    return given


def _gradient_arguments(kept: Arguments, grads: Sequence[Any], _needed: Sequence[bool]) -> Arguments:
    return grads[0], *kept


def _gradients_of(kept: Arguments) -> tuple[int | None, ...]:
    return 0, None if kept[1] is None else 1, None


FORWARD = Step(
    "glu",
    "(Tensor gate, Tensor? up, str act) -> Tensor",
    _results,
    _launch,
    Gradient(BACKWARD, _keep, _gradient_arguments, _gradients_of),
)
