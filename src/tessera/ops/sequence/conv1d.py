"""Short causal convolutions along time, one filter a channel."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Literal

import numpy as np

from tessera.driver.compile import compile as compiled
from tessera.numerics.dtypes import DType, bf16
from tessera.ops import arrays, rows
from tessera.ops.epilogue import reference as exact
from tessera.ops.operation import library_op
from tessera.ops.refusals import checked, refused
from tessera.ops.sequence import conv_kernels as kernels
from tessera.ops.sequence.conv_steps import BACKWARD, FORWARD
from tessera.target.artifact import Artifact

Activation = Literal["silu"] | None
_WIDEST = 8


@library_op
class Conv1d:
    """Causal depthwise convolution; `__call__` says what it takes."""

    @checked
    def __call__(self, x: Any, weight: Any, bias: Any = None, activation: Activation = None, *, out: Any = None) -> Any:
        """Return `y[b, d, t] = activation(bias[d] + sum over w of weight[d, w] * x[b, d, t + w - W + 1])`.

        Args:
            x: `(B, D, L)`, f64, f32, bf16 or f16. Elements before the first count as zeros.
            weight: `(D, W)` with `W` from 2 to 8, of any of these dtypes.
            bias: `(D,)`, of the dtype of `weight`, or None.
            activation: `silu`, or None.
            out: array for the result, of any strides; not `x` itself.

        Returns:
            An array as `x`. PyTorch tensors that need gradients have them.

        Raises:
            CallError: `not-an-array`, `wrong-rank`, `wrong-shape`, `wrong-dtype`, `bad-argument`, or
                `out-needs-no-gradient`.

        Numerics:
            Computed in f32 (f64 for f64), and rounded once.

        Source: Gu and Dao, Mamba: linear-time sequence modeling with selective state spaces, 2023.
        """
        given = _arguments(x, weight, bias, activation)
        if out is None:
            return FORWARD(*given)[0]
        rows.checked_out(out, arrays.shape_of(x, "x"), arrays.dtype_of(x), x, weight, bias)
        rows.apart(out, x=x)
        FORWARD.into((out,), *given)
        return out

    def backward(
        self, grad: Any, x: Any, weight: Any, bias: Any = None, activation: Activation = None
    ) -> dict[str, Any]:
        """Return the gradients of a call by the names of its arguments; the sums before SiLU are computed again.

        Args:
            grad: gradient of the result.
            x: as in the call.
            weight: as in the call.
            bias: as in the call.
            activation: as in the call.

        Raises:
            CallError: as for the call.

        Numerics:
            Sums over batch and time (of weight and bias) are added up in one order: the same bits in every run.
        """
        given = _arguments(x, weight, bias, activation)
        rows.same_shape(grad, "grad", arrays.shape_of(x, "x"))
        rows.same_dtype(grad, "grad", x, "x")
        of_x, of_weight, of_bias = BACKWARD.fresh(grad, *given)
        found = {"x": of_x, "weight": of_weight}
        return found if bias is None else found | {"bias": of_bias}

    def reference(self, x: Any, weight: Any, bias: Any = None, activation: Activation = None) -> Any:
        """Return the exact result in NumPy and float64."""
        wide, w = arrays.host(x), arrays.host(weight)
        padded = np.pad(wide, ((0, 0), (0, 0), (w.shape[1] - 1, 0)))
        found = np.zeros_like(wide)
        for at in range(w.shape[1]):
            found += padded[..., at : at + wide.shape[2]] * w[:, at, None]
        found = found if bias is None else found + arrays.host(bias)[:, None]
        return found if activation is None else exact.silu(found)

    def explain(self) -> Any:
        """Return what the last forward kernel ran: backend, schedule, emulations.

        Raises:
            CallError: `never-run` before the first call.
        """
        return kernels.forward.explain()

    def compile(
        self,
        length: int,
        dtype: DType = bf16,
        *,
        width: int = 4,
        activation: Activation = "silu",
        gradient: bool = False,
        target: str | None = None,
    ) -> Artifact:
        """Return the forward kernel, or that of the input's gradient, for a length and filters; needs no device.

        Args:
            length: elements of a channel.
            dtype: dtype of all arrays.
            width: elements of a filter.
            activation: as in a call.
            gradient: whether the kernel of the input's gradient is wanted.
            target: as for `ts.compile`.
        """
        sizes, acc = {"D": 4096, "L": length, "W": width}, rows.accumulator(dtype)
        if gradient:
            return compiled(kernels.input_gradient, target, (), sizes, T=dtype, U=dtype, taps=width, acc=acc)
        activates = activation is not None
        given: dict[str, Any] = {"T": dtype, "U": dtype, "taps": width, "activates": activates, "rough": "", "acc": acc}
        return compiled(kernels.forward, target, (), sizes, **given)

    @staticmethod
    def flops(shape: Sequence[int], width: int) -> int:
        """Return the operations of a call without bias and activation: a product and a sum a weight."""
        return 2 * width * prod(shape)

    @staticmethod
    def bytes(shape: Sequence[int], dtype: DType) -> int:
        """Return the bytes of an array and of its result."""
        return 2 * prod(shape) * dtype.bytes


def _arguments(x: Any, weight: Any, bias: Any, activation: str | None) -> tuple[Any, ...]:
    """Return what the step is called with."""
    shape, filters = arrays.shape_of(x, "x"), arrays.shape_of(weight, "weight")
    rows.float_dtype(x, "x")
    rows.float_dtype(weight, "weight")
    if len(shape) != 3:
        raise refused(f"argument 'x' has {len(shape)} dimensions", "wrong-rank", "it takes 3: batch, channels, time")
    if len(filters) != 2 or filters[0] != shape[1] or not 2 <= filters[1] <= _WIDEST:
        raise refused(
            f"argument 'weight' has the shape {tuple(filters)}, x {tuple(shape)}",
            "wrong-shape",
            f"it has a filter of 2 to {_WIDEST} elements for each channel",
        )
    if bias is not None:
        rows.same_shape(bias, "bias", shape[1:2])
        rows.same_dtype(bias, "bias", weight, "weight")
    if activation not in ("silu", None):
        raise refused(f"activation is {activation!r:.60}", "bad-argument", "it is 'silu' or None")
    return x, weight, bias, activation is not None


conv1d = Conv1d()
"""Causal depthwise convolution; see `Conv1d.__call__`."""
