"""Binary cross entropy, of probabilities (`bce`) and of logits (`bce_with_logits`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.ops import arrays
from tessera.ops.loss.pointwise import PointwiseLoss
from tessera.ops.loss.reductions import Reduction, reduced_exactly
from tessera.ops.operation import library_op
from tessera.ops.refusals import checked


@library_op
class Bce(PointwiseLoss):
    """Binary cross entropy of probabilities; `__call__` says what it takes."""

    flops_an_element = 7
    kinds = ("bce",)

    @checked
    def __call__(
        self, input: Any, target: Any, weight: Any = None, *, reduction: Reduction = "mean", out: Any = None
    ) -> Any:
        """Return `-weight·(target·log(input) + (1 - target)·log(1 - input))`, reduced.

        Args:
            input: probabilities of any shape, f64, f32, bf16 or f16.
            target: of the shape and dtype of `input`.
            weight: what broadcasts to `input`, or None; it has no gradient.
            reduction: `mean` (by the number of elements), `sum` or `none`.
            out: array for the result.

        Returns:
            One element of shape `()`, or an array as `input`. PyTorch tensors that need gradients have them.

        Raises:
            CallError: `not-an-array`, `wrong-shape`, `wrong-dtype`, `bad-argument`, or `out-needs-no-gradient`.

        Numerics:
            As `mse`; logarithms count as at least -100. An input outside [0, 1] gives NaN.

        Source: `torch.nn.functional.binary_cross_entropy`.
        """
        return self.run("bce", input, target, reduction, 0.0, weight, out=out)

    def backward(
        self, grad: Any, input: Any, target: Any, weight: Any = None, *, reduction: Reduction = "mean"
    ) -> dict[str, Any]:
        """Return the gradients of a call: `{"input": …, "target": …}`.

        Args:
            grad: gradient of the result, of its shape and of the dtype of `input`.
            input: as in the call, like all that follow.
            target: as in the call.
            weight: as in the call.
            reduction: as in the call.

        Raises:
            CallError: as for the call.
        """
        return self.gradients(grad, "bce", input, target, reduction, 0.0, weight)

    def reference(self, input: Any, target: Any, weight: Any = None, *, reduction: Reduction = "mean") -> Any:
        """Return the exact result in NumPy and float64."""
        x, y = arrays.host(input), arrays.host(target)
        with np.errstate(divide="ignore", invalid="ignore"):
            losses = -y * np.maximum(np.log(x), -100) - (1 - y) * np.maximum(np.log1p(-x), -100)
        return reduced_exactly(losses if weight is None else losses * arrays.host(weight), reduction)


@library_op
class BceWithLogits(PointwiseLoss):
    """Binary cross entropy of logits; `__call__` says what it takes."""

    flops_an_element = 7
    kinds = ("bce_with_logits",)

    @checked
    def __call__(
        self,
        input: Any,
        target: Any,
        weight: Any = None,
        *,
        reduction: Reduction = "mean",
        pos_weight: Any = None,
        out: Any = None,
    ) -> Any:
        """Return `-weight·(pos_weight·target·log(p) + (1 - target)·log(1 - p))`, `p = sigmoid(input)`, reduced.

        Args:
            input: logits of any shape, f64, f32, bf16 or f16.
            target: of the shape and dtype of `input`.
            weight: what broadcasts to `input`, or None; it has no gradient.
            reduction: `mean` (by the number of elements), `sum` or `none`.
            pos_weight: weights of positive answers that broadcast to `input`, or None; it has no gradient.
            out: array for the result.

        Returns:
            One element of shape `()`, or an array as `input`. PyTorch tensors that need gradients have them.

        Raises:
            CallError: `not-an-array`, `wrong-shape`, `wrong-dtype`, `bad-argument`, or `out-needs-no-gradient`.

        Numerics:
            As `mse`; nothing overflows where the result does not.

        Source: `torch.nn.functional.binary_cross_entropy_with_logits`.
        """
        return self.run("bce_with_logits", input, target, reduction, 0.0, weight, pos_weight, out)

    def backward(
        self,
        grad: Any,
        input: Any,
        target: Any,
        weight: Any = None,
        *,
        reduction: Reduction = "mean",
        pos_weight: Any = None,
    ) -> dict[str, Any]:
        """Return the gradients of a call: `{"input": …, "target": …}`.

        Args:
            grad: gradient of the result, of its shape and of the dtype of `input`.
            input: as in the call, like all that follow.
            target: as in the call.
            weight: as in the call.
            reduction: as in the call.
            pos_weight: as in the call.

        Raises:
            CallError: as for the call.
        """
        return self.gradients(grad, "bce_with_logits", input, target, reduction, 0.0, weight, pos_weight)

    def reference(
        self,
        input: Any,
        target: Any,
        weight: Any = None,
        *,
        reduction: Reduction = "mean",
        pos_weight: Any = None,
    ) -> Any:
        """Return the exact result in NumPy and float64."""
        x, y = arrays.host(input), arrays.host(target)
        positive = 1.0 if pos_weight is None else arrays.host(pos_weight)
        losses = positive * y * np.logaddexp(0, -x) + (1 - y) * np.logaddexp(0, x)
        return reduced_exactly(losses if weight is None else losses * arrays.host(weight), reduction)


bce = Bce()
"""Binary cross entropy of probabilities; see `Bce.__call__`."""
bce_with_logits = BceWithLogits()
"""Binary cross entropy of logits; see `BceWithLogits.__call__`."""
