"""GroupNorm: LayerNorm over groups of channels of a sample, with weights of channels."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from tessera.driver.compile import compile as compiled
from tessera.errors import CallError, caller_location
from tessera.numerics.dtypes import DType, bf16
from tessera.ops import arrays, rows
from tessera.ops.norm import group_kernels as kernels
from tessera.ops.norm.group_steps import ALIGNED, BACKWARD, FORWARD, LAST, blocks
from tessera.ops.operation import library_op
from tessera.ops.refusals import checked
from tessera.ops.steps import is_followed
from tessera.target.artifact import Artifact


@library_op
class Group:
    """GroupNorm; `__call__` says what it takes."""

    @checked
    def __call__(
        self,
        input: Any,
        num_groups: int,
        weight: Any = None,
        bias: Any = None,
        eps: float = 1e-5,
        *,
        out: Any = None,
    ) -> Any:
        """Return `(x - mean(x)) / sqrt(var(x) + eps) * weight + bias` over each group of channels of a sample.

        Args:
            input: `(N, C, …)`, f64, f32, bf16 or f16; copied where it is not contiguous.
            num_groups: how many groups the channels make, which divides C.
            weight: `(C,)`, or None.
            bias: `(C,)`, or None; of the dtype of `weight`.
            eps: added to the variance.
            out: array for the result.

        Returns:
            An array as `input`. PyTorch tensors that need gradients have them.

        Raises:
            CallError: `not-an-array`, `wrong-shape`, `wrong-dtype`, `bad-argument`, or `out-needs-no-gradient`.

        Numerics:
            Sums are kept in f32 (f64 for f64), and rounded once to the dtype of `input`.

        Source: Wu and He, Group Normalization, 2018; `torch.nn.functional.group_norm`.
        """
        shape, call = _arguments(input, num_groups, weight, bias, eps)
        keeps = is_followed(call)
        if out is not None:
            rows.checked_out(out, shape, arrays.dtype_of(input), input, weight, bias)
        made = FORWARD(*call, keeps)[0].reshape(shape)
        if out is None:
            return made
        out[...] = made
        return out

    def backward(
        self, grad: Any, input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
    ) -> dict[str, Any]:
        """Return the gradients of a call by the names of its arguments.

        Args:
            grad: gradient of the result.
            input: as in the call, like all that follow.
            num_groups: as in the call.
            weight: as in the call.
            bias: as in the call.
            eps: as in the call.

        Raises:
            CallError: as for the call.
        """
        shape, call = _arguments(input, num_groups, weight, bias, eps)
        rows.same_shape(grad, "grad", shape)
        x, weight, bias, groups, _eps = call
        _out, mean, rstd = FORWARD.fresh(*call, True)
        wanted = [weight is not None, bias is not None]
        kind = bias if weight is None else weight
        found = BACKWARD.fresh(grad.reshape(tuple(x.shape)), x, weight, mean, rstd, groups, wanted, kind)
        named = {name: found[1 + at] for at, name in enumerate(("weight", "bias")) if wanted[at]}
        return {"input": found[0].reshape(shape), **named}

    def explain(self) -> Any:
        """Return what the last forward kernel ran: backend, schedule, emulations.

        Raises:
            CallError: `never-run` before the first call.
        """
        return LAST["forward"].explain()

    @staticmethod
    def compile(
        shape: Sequence[int],
        num_groups: int,
        dtype: DType = bf16,
        *,
        weight: DType | None = None,
        target: str | None = None,
        dump: Sequence[str] = (),
    ) -> Artifact:
        """Return the forward kernel for arrays of a shape; needs no device.

        Args:
            shape: `(N, C, …)`.
            num_groups: how many groups.
            dtype: dtype of the array.
            weight: dtype of weights and biases, None for none.
            target: as for `ts.compile`.
            dump: as for `ts.compile`.
        """
        channels, size = shape[1] // num_groups, prod(shape[2:])
        given: dict[str, Any] = {"T": dtype, "acc": rows.accumulator(dtype), "mean": None, "rstd": None}
        given |= {"weight": None, "bias": None} if weight is None else {"W": weight}
        sizes = {"N": channels * size}
        if size % ALIGNED:
            return compiled(kernels.forward, target, dump, sizes, S=size, **given)
        sizes |= {"K": channels, "L": size}
        given |= {"size": channels * size, **blocks(channels, size)}
        return compiled(kernels.forward_by_channels, target, dump, sizes, **given)

    @staticmethod
    def reference(input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
        """Return the exact result in NumPy and float64."""
        x = arrays.host(input)
        found = x.reshape(x.shape[0], num_groups, -1)
        found = found - found.mean(2, keepdims=True)
        found = (found / np.sqrt((found * found).mean(2, keepdims=True) + eps)).reshape(x.shape)
        wide = (1, -1, *(1,) * (x.ndim - 2))
        found = found if weight is None else found * arrays.host(weight).reshape(wide)
        return found if bias is None else found + arrays.host(bias).reshape(wide)

    @staticmethod
    def flops(shape: Sequence[int]) -> int:
        """Return the operations of a call with weights."""
        return 6 * prod(shape)

    @staticmethod
    def bytes(shape: Sequence[int], dtype: DType) -> int:
        """Return the bytes of input and result, each once."""
        return 2 * prod(shape) * dtype.bytes


def _arguments(
    input: Any, num_groups: int, weight: Any, bias: Any, eps: float
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the shape, and what the step is called with but its last argument."""
    shape = arrays.shape_of(input, "input")
    rows.float_dtype(input, "input")
    if len(shape) < 2:
        raise CallError(
            f"argument 'input' has the shape {tuple(shape)}",
            code="wrong-shape",
            location=caller_location(),
            help="it takes (N, C, ...)",
        )
    if num_groups < 1 or shape[1] % num_groups:
        raise CallError(
            f"{shape[1]} channels make no {num_groups} groups",
            code="bad-argument",
            location=caller_location(),
            help="num_groups divides the channels",
        )
    rows.check_vectors({"weight": weight, "bias": bias}, shape[1:2])
    x = rows.contiguous(input.reshape(shape[0], shape[1], prod(shape[2:])))
    return shape, (x, weight, bias, int(num_groups), float(eps))


group = Group()
"""GroupNorm; see `Group.__call__`."""
