"""Losses of differences: `mse`, `l1`, `huber` and `smooth_l1`."""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.errors import CallError, caller_location
from tessera.ops import arrays, rows
from tessera.ops.loss.pointwise import PointwiseLoss
from tessera.ops.loss.reductions import Reduction, reduced_exactly
from tessera.ops.operation import library_op
from tessera.ops.refusals import checked
from tessera.ops.steps import without_gradient


class Distance(PointwiseLoss):
    """A loss of the differences of two arrays."""

    def exact_difference(self, input: Any, target: Any) -> Any:
        """Return the differences in NumPy and float64."""
        return arrays.host(input) - arrays.host(target)

    def reduced(self, losses: Any, weight: Any, reduction: str) -> Any:
        """Return a reduction of losses times their weights in NumPy and float64."""
        if weight is None:
            return reduced_exactly(losses, reduction)
        weights = arrays.host(weight)
        if reduction != "mean" or not self.is_mean_of_weights:
            return reduced_exactly(losses * weights, reduction)
        with np.errstate(invalid="ignore"):
            return np.asarray((losses * weights).sum() / weights.sum())


def _weights(weight: Any, input: Any) -> Any:
    """Return the weights of elements.

    Raises:
        CallError: `not-an-array`, `wrong-shape`, or `no-gradient` for weights that need one.
    """
    if weight is not None:
        rows.same_shape(weight, "weight", arrays.shape_of(input, "input"))
    return without_gradient(weight, "weight")


def _at_least(name: str, value: float, is_open: bool) -> float:
    if value > 0 or (value == 0 and not is_open):
        return float(value)
    raise CallError(
        f"{name} is {value}",
        code="bad-argument",
        location=caller_location(),
        help="it is above 0" if is_open else "it is at least 0",
    )


@library_op
class Mse(Distance):
    """The mean squared error; `__call__` says what it takes."""

    flops_an_element = 2
    kinds = ("mse",)
    is_mean_of_weights = True

    @checked
    def __call__(
        self, input: Any, target: Any, *, reduction: Reduction = "mean", weight: Any = None, out: Any = None
    ) -> Any:
        """Return `(input - target)²`, reduced.

        Args:
            input: any shape, f64, f32, bf16 or f16.
            target: of the shape and dtype of `input`.
            reduction: `mean`, `sum` or `none`.
            weight: of the shape of `input`, what losses are multiplied by; a mean is divided by its sum. It has no
                gradient.
            out: array for the result.

        Returns:
            One element of shape `()`, or an array as `input`. PyTorch tensors that need gradients have them.

        Raises:
            CallError: `not-an-array`, `wrong-shape`, `wrong-dtype`, `bad-argument`, `no-gradient` for weights that
                need one, or `out-needs-no-gradient`.

        Numerics:
            Computed and added up in f32 (f64 for f64) in one order, rounded once; a mean of no elements is NaN.

        Source: `torch.nn.functional.mse_loss`.
        """
        return self.run("mse", input, target, reduction, weight=_weights(weight, input), out=out)

    def backward(
        self, grad: Any, input: Any, target: Any, *, reduction: Reduction = "mean", weight: Any = None
    ) -> dict[str, Any]:
        """Return the gradients of a call: `{"input": …, "target": …}`.

        Args:
            grad: gradient of the result, of its shape and of the dtype of `input`.
            input: as in the call, like all that follow.
            target: as in the call.
            reduction: as in the call.
            weight: as in the call.

        Raises:
            CallError: as for the call.
        """
        return self.gradients(grad, "mse", input, target, reduction, weight=_weights(weight, input))

    def reference(self, input: Any, target: Any, *, reduction: Reduction = "mean", weight: Any = None) -> Any:
        """Return the exact result in NumPy and float64."""
        return self.reduced(self.exact_difference(input, target) ** 2, weight, reduction)


@library_op
class L1(Distance):
    """The mean absolute error; `__call__` says what it takes."""

    flops_an_element = 2
    kinds = ("l1",)
    is_mean_of_weights = True

    @checked
    def __call__(
        self, input: Any, target: Any, *, reduction: Reduction = "mean", weight: Any = None, out: Any = None
    ) -> Any:
        """Return `|input - target|`, reduced; its derivative where they are equal is 0.

        Args:
            input: any shape, f64, f32, bf16 or f16.
            target: of the shape and dtype of `input`.
            reduction: `mean`, `sum` or `none`.
            weight: of the shape of `input`, what losses are multiplied by; a mean is divided by its sum. It has no
                gradient.
            out: array for the result.

        Returns:
            One element of shape `()`, or an array as `input`. PyTorch tensors that need gradients have them.

        Raises:
            CallError: `not-an-array`, `wrong-shape`, `wrong-dtype`, `bad-argument`, `no-gradient` for weights that
                need one, or `out-needs-no-gradient`.

        Numerics:
            As `mse`.

        Source: `torch.nn.functional.l1_loss`.
        """
        return self.run("l1", input, target, reduction, weight=_weights(weight, input), out=out)

    def backward(
        self, grad: Any, input: Any, target: Any, *, reduction: Reduction = "mean", weight: Any = None
    ) -> dict[str, Any]:
        """Return the gradients of a call: `{"input": …, "target": …}`.

        Args:
            grad: gradient of the result, of its shape and of the dtype of `input`.
            input: as in the call, like all that follow.
            target: as in the call.
            reduction: as in the call.
            weight: as in the call.

        Raises:
            CallError: as for the call.
        """
        return self.gradients(grad, "l1", input, target, reduction, weight=_weights(weight, input))

    def reference(self, input: Any, target: Any, *, reduction: Reduction = "mean", weight: Any = None) -> Any:
        """Return the exact result in NumPy and float64."""
        return self.reduced(np.abs(self.exact_difference(input, target)), weight, reduction)


@library_op
class Huber(Distance):
    """The Huber loss; `__call__` says what it takes."""

    flops_an_element = 6
    kinds = ("huber",)

    @checked
    def __call__(
        self,
        input: Any,
        target: Any,
        reduction: Reduction = "mean",
        delta: float = 1.0,
        weight: Any = None,
        *,
        out: Any = None,
    ) -> Any:
        """Return `d²/2` where `|d| < delta`, `delta·(|d| - delta/2)` elsewhere, `d = input - target`, reduced.

        Args:
            input: any shape, f64, f32, bf16 or f16.
            target: of the shape and dtype of `input`.
            reduction: `mean`, `sum` or `none`.
            delta: where the loss becomes linear, above 0.
            weight: of the shape of `input`, what losses are multiplied by; a mean is divided by the number of elements.
                It has no gradient.
            out: array for the result.

        Returns:
            One element of shape `()`, or an array as `input`. PyTorch tensors that need gradients have them.

        Raises:
            CallError: `not-an-array`, `wrong-shape`, `wrong-dtype`, `bad-argument`, `no-gradient` for weights that
                need one, or `out-needs-no-gradient`.

        Numerics:
            As `mse`.

        Source: Huber, Robust estimation of a location parameter, 1964; `torch.nn.functional.huber_loss`.
        """
        weights = _weights(weight, input)
        return self.run("huber", input, target, reduction, _at_least("delta", delta, True), weights, out=out)

    def backward(
        self,
        grad: Any,
        input: Any,
        target: Any,
        reduction: Reduction = "mean",
        delta: float = 1.0,
        weight: Any = None,
    ) -> dict[str, Any]:
        """Return the gradients of a call: `{"input": …, "target": …}`.

        Args:
            grad: gradient of the result, of its shape and of the dtype of `input`.
            input: as in the call, like all that follow.
            target: as in the call.
            reduction: as in the call.
            delta: as in the call.
            weight: as in the call.

        Raises:
            CallError: as for the call.
        """
        weights = _weights(weight, input)
        return self.gradients(grad, "huber", input, target, reduction, _at_least("delta", delta, True), weights)

    def reference(
        self, input: Any, target: Any, reduction: Reduction = "mean", delta: float = 1.0, weight: Any = None
    ) -> Any:
        """Return the exact result in NumPy and float64."""
        size = np.abs(self.exact_difference(input, target))
        return self.reduced(np.where(size < delta, size**2 / 2, delta * (size - delta / 2)), weight, reduction)


@library_op
class SmoothL1(Distance):
    """The smooth L1 loss; `__call__` says what it takes."""

    flops_an_element = 6
    kinds = ("smooth_l1",)

    @checked
    def __call__(
        self, input: Any, target: Any, *, reduction: Reduction = "mean", beta: float = 1.0, out: Any = None
    ) -> Any:
        """Return `d²/(2·beta)` where `|d| < beta`, `|d| - beta/2` elsewhere, `d = input - target`, reduced.

        Args:
            input: any shape, f64, f32, bf16 or f16.
            target: of the shape and dtype of `input`.
            reduction: `mean`, `sum` or `none`.
            beta: where the loss becomes linear, at least 0; 0 gives `l1`.
            out: array for the result.

        Returns:
            One element of shape `()`, or an array as `input`. PyTorch tensors that need gradients have them.

        Raises:
            CallError: `not-an-array`, `wrong-shape`, `wrong-dtype`, `bad-argument`, or `out-needs-no-gradient`.

        Numerics:
            As `mse`.

        Source: Girshick, Fast R-CNN, 2015; `torch.nn.functional.smooth_l1_loss`.
        """
        beta = _at_least("beta", beta, False)
        return self.run("smooth_l1" if beta else "l1", input, target, reduction, beta, out=out)

    def backward(
        self, grad: Any, input: Any, target: Any, *, reduction: Reduction = "mean", beta: float = 1.0
    ) -> dict[str, Any]:
        """Return the gradients of a call: `{"input": …, "target": …}`.

        Args:
            grad: gradient of the result, of its shape and of the dtype of `input`.
            input: as in the call, like all that follow.
            target: as in the call.
            reduction: as in the call.
            beta: as in the call.

        Raises:
            CallError: as for the call.
        """
        beta = _at_least("beta", beta, False)
        return self.gradients(grad, "smooth_l1" if beta else "l1", input, target, reduction, beta)

    def reference(self, input: Any, target: Any, *, reduction: Reduction = "mean", beta: float = 1.0) -> Any:
        """Return the exact result in NumPy and float64."""
        size = np.abs(self.exact_difference(input, target))
        square = size**2 / (2 * beta) if beta else size
        return reduced_exactly(np.where(size < beta, square, size - beta / 2), reduction)


mse = Mse()
"""The mean squared error; see `Mse.__call__`."""
l1 = L1()
"""The mean absolute error; see `L1.__call__`."""
huber = Huber()
"""The Huber loss; see `Huber.__call__`."""
smooth_l1 = SmoothL1()
"""The smooth L1 loss; see `SmoothL1.__call__`."""
