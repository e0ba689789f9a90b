"""Logarithms of softmax."""

from __future__ import annotations

from typing import Any

from tessera.ops.operation import library_op
from tessera.ops.refusals import checked
from tessera.ops.softmaxes.along import Along


@library_op
class LogSoftmax(Along):
    """The logarithm of softmax; `__call__` says what it takes."""

    form = "log"

    @checked
    def __call__(
        self,
        input: Any,
        dim: int | None = -1,
        *,
        dtype: object = None,
        scale: float = 1.0,
        mask: Any = None,
        causal: bool = False,
        out: Any = None,
    ) -> Any:
        """Return `h - log(sum(exp(h)))` along one dimension, `h = scale * input` where the mask lets it be.

        Args:
            input: f64, f32, bf16 or f16.
            dim: the dimension, counted from the end when negative.
            dtype: of the result, one of those; by default that of `input`.
            scale: what elements are multiplied by.
            mask: broadcasts to `input`, along the last dimension only. Of bool, true where an element counts; else
                added to `scale * input`. It has no gradient.
            causal: whether query q of `(..., queries, keys)` sees keys up to `q + keys - queries` only.
            out: array for the result.

        Returns:
            An array as `input`. PyTorch tensors that need gradients have them.

        Raises:
            CallError: `not-an-array`, `wrong-shape`, `wrong-dtype`, `bad-axis`, `bad-argument`,
                `mask-needs-no-gradient` or `out-needs-no-gradient`.

        Numerics:
            Computed in f32 (f64 for f64) and rounded once. A row of which a mask leaves nothing is -inf; without a
            mask a row of -inf is NaN, as in PyTorch, and so is one with +inf or NaN.

        Source: `torch.nn.functional.log_softmax`.
        """
        return self.run(input, dim, dtype, scale, mask, causal, out)

    def backward(
        self,
        grad: Any,
        input: Any,
        dim: int | None = -1,
        *,
        dtype: object = None,
        scale: float = 1.0,
        mask: Any = None,
        causal: bool = False,
    ) -> dict[str, Any]:
        """Return the gradient of a call by the name of its argument: `{"input": …}`.

        Args:
            grad: gradient of the result.
            input: as in the call, like all that follow.
            dim: as in the call.
            dtype: as in the call.
            scale: as in the call.
            mask: as in the call.
            causal: as in the call.

        Raises:
            CallError: as for the call.

        Numerics:
            It is computed from the result as that is rounded, as in PyTorch. What a mask leaves out has none.
        """
        return self.gradients(grad, input, dim, dtype, scale, mask, causal)

    def reference(
        self, input: Any, dim: int | None = -1, *, scale: float = 1.0, mask: Any = None, causal: bool = False
    ) -> Any:
        """Return the exact result in NumPy and float64."""
        return self.exact(input, dim, scale, mask, causal)


log_softmax = LogSoftmax()
"""The logarithm of softmax; see `LogSoftmax.__call__`."""
