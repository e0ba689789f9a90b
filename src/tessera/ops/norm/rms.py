"""RMSNorm: rows divided by their root mean square."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.numerics.dtypes import DType
from tessera.ops.norm.row_norm import RowNorm
from tessera.ops.operation import library_op
from tessera.ops.refusals import checked


@library_op
class Rms(RowNorm):
    """RMSNorm; `__call__` says what it takes."""

    centred = False

    @checked
    def __call__(
        self,
        input: Any,
        normalized_shape: int | Sequence[int],
        weight: Any = None,
        eps: float | None = None,
        *,
        bias: Any = None,
        residual: Any = None,
        input_bias: Any = None,
        dropout: float = 0.0,
        seed: int = 0,
        quantize: DType | None = None,
        quantize_block: int | None = None,
        out: Any = None,
    ) -> Any:
        """Return `h / sqrt(mean(h²) + eps) * weight + bias`, where `h = residual + dropout(input + input_bias)`.

        Args:
            input: `(..., *normalized_shape)`, f64, f32, bf16 or f16.
            normalized_shape: sizes of the last dimensions, which the mean goes over.
            weight: `normalized_shape`, or None.
            eps: added to the mean of squares; by default 2⁻²³ (f64: 2⁻⁵²), as in PyTorch.
            bias: `normalized_shape`, or None; of the dtype of `weight`.
            residual: as `input`, or None. With it `h` is a second result.
            input_bias: `normalized_shape`, or None; of the dtype of `weight`.
            dropout: probability with which elements of `input + input_bias` are left out.
            seed: of dropout; an element's fate depends on it and on the element's number alone.
            quantize: `ts.fp8_e4m3` or `ts.fp8_e5m2`: the result is such numbers, and beside it the f32 scales
                `(..., K)` that they are multiplied by, one of a row or of each `quantize_block` of its elements, so
                that the largest becomes the dtype's. Without gradients.
            quantize_block: elements that share a scale, which divide a row; None for whole rows.
            out: array for the result.

        Returns:
            An array as `input`, with `quantize` followed by the scales; with `residual` also `h`. PyTorch tensors
            that need gradients have them.

        Raises:
            CallError: `not-an-array`, `wrong-shape`, `wrong-dtype`, `bad-argument`, or `out-needs-no-gradient`.

        Numerics:
            Sums are kept in f32 (f64 for f64), and rounded once to the dtype of `input`.

        Source: Zhang and Sennrich, Root Mean Square Layer Normalization, 2019; `torch.nn.functional.rms_norm`.
        """
        return self.run(
            input,
            normalized_shape,
            weight,
            bias,
            eps,
            residual,
            input_bias,
            dropout,
            seed,
            quantize,
            quantize_block,
            out,
        )

    def backward(
        self,
        grad: Any,
        input: Any,
        normalized_shape: int | Sequence[int],
        weight: Any = None,
        eps: float | None = None,
        *,
        bias: Any = None,
        residual: Any = None,
        input_bias: Any = None,
        dropout: float = 0.0,
        seed: int = 0,
        grad_summed: Any = None,
    ) -> dict[str, Any]:
        """Return the gradients of a call by the names of its arguments: `{"input": …, "weight": …}`.

        Args:
            grad: gradient of the result.
            input: as in the call, like all that follow.
            normalized_shape: as in the call.
            weight: as in the call.
            eps: as in the call.
            bias: as in the call.
            residual: as in the call.
            input_bias: as in the call.
            dropout: as in the call.
            seed: as in the call.
            grad_summed: gradient of `h` where that is a result and was used, or None.

        Raises:
            CallError: as for the call.

        Numerics:
            Sums over rows (of weight, bias, input_bias) are added up in one order: the same bits in every run.
        """
        return self.gradients(
            grad, input, normalized_shape, weight, bias, eps, residual, input_bias, dropout, seed, grad_summed
        )

    def reference(
        self,
        input: Any,
        normalized_shape: int | Sequence[int],
        weight: Any = None,
        eps: float | None = None,
        *,
        bias: Any = None,
        residual: Any = None,
        input_bias: Any = None,
    ) -> Any:
        """Return the exact result in NumPy and float64, without dropout; with a residual that and `h`."""
        return self.exact(input, normalized_shape, weight, bias, eps, residual, input_bias)


rms = Rms()
"""RMSNorm; see `Rms.__call__`."""
