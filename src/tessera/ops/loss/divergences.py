"""Divergences of distributions: Kullback and Leibler's (`kl_div`), Jensen and Shannon's (`js`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.ops import arrays
from tessera.ops.loss.pointwise import PointwiseLoss
from tessera.ops.loss.reductions import BatchReduction, reduced_exactly
from tessera.ops.operation import library_op
from tessera.ops.refusals import checked


@library_op
class KlDiv(PointwiseLoss):
    """The Kullback-Leibler divergence; `__call__` says what it takes."""

    reductions = ("mean", "sum", "none", "batchmean")
    flops_an_element = 4
    kinds = ("kl", "kl_log")

    @checked
    def __call__(
        self,
        input: Any,
        target: Any,
        *,
        reduction: BatchReduction = "mean",
        log_target: bool = False,
        out: Any = None,
    ) -> Any:
        """Return `target·(log(target) - input)`, reduced; where a target is 0 that is 0, whatever the input.

        Args:
            input: logarithms of probabilities, any shape, f64, f32, bf16 or f16.
            target: probabilities, or their logarithms with `log_target`; of the shape and dtype of `input`.
            reduction: `mean` (by the number of elements), `sum`, `none`, or `batchmean`, by the first dimension's
                size, which is what the divergence is defined to be.
            log_target: whether `target` is logarithms.
            out: array for the result.

        Returns:
            One element of shape `()`, or an array as `input`. PyTorch tensors that need gradients have them.

        Raises:
            CallError: `not-an-array`, `wrong-shape`, `wrong-dtype`, `bad-argument`, or `out-needs-no-gradient`.

        Numerics:
            As `mse`. The derivative of `target·log(target)` at 0 counts as 0.

        Source: Kullback and Leibler, On information and sufficiency, 1951; `torch.nn.functional.kl_div`.
        """
        return self.run(self.kinds[log_target], input, target, reduction, out=out)

    def backward(
        self,
        grad: Any,
        input: Any,
        target: Any,
        *,
        reduction: BatchReduction = "mean",
        log_target: bool = False,
    ) -> dict[str, Any]:
        """Return the gradients of a call: `{"input": …, "target": …}`.

        Args:
            grad: gradient of the result, of its shape and of the dtype of `input`.
            input: as in the call, like all that follow.
            target: as in the call.
            reduction: as in the call.
            log_target: as in the call.

        Raises:
            CallError: as for the call.
        """
        return self.gradients(grad, self.kinds[log_target], input, target, reduction)

    def reference(
        self, input: Any, target: Any, *, reduction: BatchReduction = "mean", log_target: bool = False
    ) -> Any:
        """Return the exact result in NumPy and float64."""
        x, y = arrays.host(input), arrays.host(target)
        with np.errstate(divide="ignore", invalid="ignore"):
            p, logs = (np.exp(y), y) if log_target else (y, np.log(y))
            losses = np.where(p == 0, 0.0, p * (logs - x))
        return reduced_exactly(losses, reduction)


@library_op
class Js(PointwiseLoss):
    """The Jensen-Shannon divergence; `__call__` says what it takes."""

    reductions = ("mean", "sum", "none", "batchmean")
    flops_an_element = 10
    kinds = ("js", "js_log")

    @checked
    def __call__(
        self,
        input: Any,
        target: Any,
        *,
        reduction: BatchReduction = "batchmean",
        log: bool = False,
        out: Any = None,
    ) -> Any:
        """Return `(p·log(p/m) + q·log(q/m))/2`, `m = (p + q)/2`, reduced; `p` is `input`, `q` is `target`.

        Args:
            input: probabilities, or their logarithms with `log`; any shape, f64, f32, bf16 or f16.
            target: of the shape and dtype of `input`.
            reduction: `batchmean`, by the first dimension's size, `mean` (by the number of elements), `sum` or `none`.
            log: whether both are logarithms.
            out: array for the result.

        Returns:
            One element of shape `()`, or an array as `input`. PyTorch tensors that need gradients have them.

        Raises:
            CallError: `not-an-array`, `wrong-shape`, `wrong-dtype`, `bad-argument`, or `out-needs-no-gradient`.

        Numerics:
            As `mse`. A probability of 0 adds 0 and has the derivative 0.

        Source: Lin, Divergence measures based on the Shannon entropy, 1991.
        """
        return self.run(self.kinds[log], input, target, reduction, out=out)

    def backward(
        self,
        grad: Any,
        input: Any,
        target: Any,
        *,
        reduction: BatchReduction = "batchmean",
        log: bool = False,
    ) -> dict[str, Any]:
        """Return the gradients of a call: `{"input": …, "target": …}`.

        Args:
            grad: gradient of the result, of its shape and of the dtype of `input`.
            input: as in the call, like all that follow.
            target: as in the call.
            reduction: as in the call.
            log: as in the call.

        Raises:
            CallError: as for the call.
        """
        return self.gradients(grad, self.kinds[log], input, target, reduction)

    def reference(self, input: Any, target: Any, *, reduction: BatchReduction = "batchmean", log: bool = False) -> Any:
        """Return the exact result in NumPy and float64."""
        p, q = (np.exp(one) if log else one for one in map(arrays.host, (input, target)))
        with np.errstate(divide="ignore", invalid="ignore"):
            terms = [np.where(one == 0, 0.0, one * np.log(2 * one / (p + q))) for one in (p, q)]
        return reduced_exactly((terms[0] + terms[1]) / 2, reduction)


kl_div = KlDiv()
"""The Kullback-Leibler divergence; see `KlDiv.__call__`."""
js = Js()
"""The Jensen-Shannon divergence; see `Js.__call__`."""
