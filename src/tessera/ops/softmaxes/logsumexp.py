"""Logarithms of sums of powers of e."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from tessera.numerics.dtypes import DType, bf16
from tessera.ops import arrays, axes, rows
from tessera.ops.operation import library_op
from tessera.ops.refusals import checked
from tessera.ops.softmaxes.along import checked_gradient, compile_forward, ran
from tessera.ops.softmaxes.steps import SUMS, SUMS_BACKWARD
from tessera.target.artifact import Artifact


@library_op
class LogSumExp:
    """The logarithm of the sum of powers of e; `__call__` says what it takes."""

    @checked
    def __call__(self, input: Any, dim: int | Sequence[int], keepdim: bool = False, *, out: Any = None) -> Any:
        """Return `log(sum(exp(input)))` along dimensions, without overflow.

        Args:
            input: f64, f32, bf16 or f16.
            dim: dimension or dimensions, counted from the end when negative. Those that lie apart are copied together.
            keepdim: whether they stay, with one element.
            out: array for the result.

        Returns:
            An array of the dtype of `input`. PyTorch tensors that need gradients have them.

        Raises:
            CallError: `not-an-array`, `wrong-shape`, `wrong-dtype`, `bad-axis`, `bad-argument` or
                `out-needs-no-gradient`.

        Numerics:
            Computed in f32 (f64 for f64) and rounded once. -inf where all elements are -inf or there are none; +inf
            where one is.

        Source: `torch.logsumexp`.
        """
        shape, dtype = arrays.shape_of(input, "input"), rows.float_dtype(input, "input")
        dims = axes.chosen(dim, len(shape))
        x, kept = axes.folded(input, dims), axes.left(shape, dims, keepdim)
        if out is None:
            return SUMS(x)[0].reshape(kept)
        rows.checked_out(out, kept, dtype, input)
        wanted = (x.shape[0], *x.shape[2:])
        goal = axes.place_left(out, shape, dims, wanted)
        if goal is None:
            out[...] = SUMS(x)[0].reshape(kept)
        else:
            SUMS.into((goal,), x)
        return out

    def backward(self, grad: Any, input: Any, dim: int | Sequence[int], keepdim: bool = False) -> dict[str, Any]:
        """Return the gradient of a call by the name of its argument: `{"input": …}`.

        Args:
            grad: gradient of the result.
            input: as in the call, like all that follow.
            dim: as in the call.
            keepdim: as in the call.

        Raises:
            CallError: as for the call.
        """
        shape, dtype = arrays.shape_of(input, "input"), rows.float_dtype(input, "input")
        dims = axes.chosen(dim, len(shape))
        checked_gradient(grad, axes.left(shape, dims, keepdim), dtype)
        x = axes.folded(input, dims)
        (sums,) = SUMS.fresh(x)
        (found,) = SUMS_BACKWARD.fresh(grad.reshape(tuple(sums.shape)), x, sums)
        return {"input": axes.unfolded(found, shape, dims)}

    def reference(self, input: Any, dim: int | Sequence[int], keepdim: bool = False) -> Any:
        """Return the exact result in NumPy and float64."""
        x = arrays.host(input)
        axis = axes.chosen(dim, x.ndim)
        with np.errstate(invalid="ignore", divide="ignore"):
            top = x.max(axis, keepdims=True, initial=-np.inf)
            top = np.where(np.isinf(top), 0.0, top)
            found = np.log(np.exp(x - top).sum(axis, keepdims=True)) + top
        return found.reshape(axes.left(x.shape, axis, keepdim))

    def explain(self) -> Any:
        """Return what the last forward kernel ran: backend, schedule, emulations.

        Raises:
            CallError: `never-run` before the first call.
        """
        return ran("sums")

    def compile(
        self,
        shape: Sequence[int],
        dim: int = -1,
        dtype: DType = bf16,
        *,
        target: str | None = None,
        dump: Sequence[str] = (),
    ) -> Artifact:
        """Return the forward kernel for arrays of a shape; needs no device.

        Args:
            shape: sizes of the input.
            dim: as in a call.
            dtype: of input and result.
            target: as for `ts.compile`.
            dump: as for `ts.compile`.
        """
        options = {"mask": None, "y": None, "boolean": False, "causal": False}
        return compile_forward("sums", shape, dim, dtype, options, target, dump)

    @staticmethod
    def flops(shape: Sequence[int]) -> int:
        """Return the operations of a call: largest, difference, power and sum of each element."""
        return 4 * prod(shape)

    @staticmethod
    def bytes(shape: Sequence[int], dtype: DType, dim: int | Sequence[int] = -1) -> int:
        """Return the bytes of input and result, each once."""
        return (prod(shape) + prod(axes.left(shape, axes.chosen(dim, len(shape)), False))) * dtype.bytes


logsumexp = LogSumExp()
"""The logarithm of the sum of powers of e; see `LogSumExp.__call__`."""
