"""Running sums and products."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from operator import index
from typing import Any, ClassVar

import numpy as np

from tessera.driver.compile import compile as compiled
from tessera.numerics.dtypes import BY_NAME, DType, f32, i64
from tessera.ops import arrays, axes, rows
from tessera.ops.operation import library_op
from tessera.ops.reduce.base import checked_gradient, number_dtype
from tessera.ops.reduce.steps import blocks
from tessera.ops.refusals import checked
from tessera.ops.running.steps import (
    CUMPROD,
    CUMPROD_BACKWARD,
    CUMSUM,
    CUMSUM_BACKWARD,
    LAST,
    forward_kernel,
    summed_in,
)
from tessera.ops.steps import Step
from tessera.target.artifact import Artifact


class Running:
    """A running combination; the subclasses say of what."""

    kind: ClassVar[str]
    """`sum` or `prod`."""
    step: ClassVar[Step]
    """What computes it."""

    @checked
    def __call__(self, input: Any, dim: int, *, dtype: object = None, out: Any = None) -> Any:
        """Return the sum or product of each element and all before it along a dimension.

        Args:
            input: f64, f32, bf16, f16, integers or bool.
            dim: the dimension, counted from the end when negative. GPUs take a long one of few rows in parts, whose
                elements are read twice; CPUs go along it from end to end.
            dtype: of the result, one of floating point numbers; by default that of `input`, i64 for integers.
            out: array for the result.

        Returns:
            An array of the shape of `input`. PyTorch tensors that need gradients have them.

        Raises:
            CallError: `not-an-array`, `wrong-shape`, `wrong-dtype`, `bad-axis`, `bad-argument` or
                `out-needs-no-gradient`.

        Numerics:
            Computed in f32 (f64 for f64, and for f32 on CPUs; i64 for integers, which wrap) and rounded once. Gradients
            of products need no quotient, so zeros do no harm.

        Source: `torch.cumsum`, `torch.cumprod`; Blelloch, Prefix sums and their applications, 1990.
        """
        shape, found = arrays.shape_of(input, "input"), number_dtype(input, ("bool",))
        wanted = axes.dtype_asked(dtype, found if found.is_float else BY_NAME["i64"])
        dims = axes.chosen(index(dim), len(shape))
        x = axes.folded(input, dims)
        if out is None:
            return axes.unfolded(self.step(x, wanted.name)[0], shape, dims)
        rows.checked_out(out, shape, wanted, input)
        goal = axes.place_along(out, dims, tuple(x.shape))
        if goal is None:
            out[...] = axes.unfolded(self.step(x, wanted.name)[0], shape, dims)
        else:
            self.step.into((goal,), x, wanted.name)
        return out

    def backward(self, grad: Any, input: Any, dim: int) -> dict[str, Any]:
        """Return the gradient of a call by the name of its argument: `{"input": …}`.

        Args:
            grad: gradient of the result.
            input: as in the call.
            dim: as in the call.

        Raises:
            CallError: as for the call.
        """
        shape, dtype = arrays.shape_of(input, "input"), rows.float_dtype(input, "input")
        checked_gradient(grad, shape)
        dims = axes.chosen(dim, len(shape))
        x, g = axes.folded(input, dims), axes.folded(grad, dims)
        if self.kind == "sum":
            (found,) = CUMSUM_BACKWARD.fresh(g, dtype.name)
        else:
            (found,) = CUMPROD_BACKWARD.fresh(g, x, *CUMPROD.fresh(x, arrays.dtype_of(grad).name))
        return {"input": axes.unfolded(found, shape, dims)}

    def reference(self, input: Any, dim: int) -> Any:
        """Return the exact result in NumPy and float64."""
        x = arrays.host(input)
        function: Any = np.cumsum if self.kind == "sum" else np.cumprod
        return function(x, dim).reshape(x.shape)

    def explain(self) -> Any:
        """Return what the last forward kernel ran: backend, schedule, emulations.

        Raises:
            CallError: `never-run` before the first call.
        """
        return LAST.get(self.kind, forward_kernel((1, 1))).explain()

    def compile(
        self,
        shape: Sequence[int],
        dim: int = -1,
        dtype: DType = f32,
        *,
        target: str | None = None,
        dump: Sequence[str] = (),
    ) -> Artifact:
        """Return the forward kernel for contiguous arrays of a shape; needs no device.

        Args:
            shape: sizes of the input.
            dim: as in a call.
            dtype: of the input.
            target: as for `ts.compile`.
            dump: as for `ts.compile`.
        """
        found = axes.extents(shape, axes.chosen(dim, len(shape)))
        sizes = dict(zip("ANB", found, strict=True)) if found[2] != 1 else {"A": found[0], "N": found[1]}
        result = dtype if dtype.is_float else i64
        given: dict[str, Any] = {"T": dtype, "Y": result, "kind": self.kind, "reverse": False}
        acc = summed_in(dtype, result, target or "")
        given |= {"acc": acc, "starts": None, **blocks(tuple(sizes.values()))}
        return compiled(forward_kernel(tuple(sizes.values())), target, dump, sizes, **given)

    @staticmethod
    def flops(shape: Sequence[int]) -> int:
        """Return the operations of a call: one for each element."""
        return prod(shape)

    @staticmethod
    def bytes(shape: Sequence[int], dtype: DType) -> int:
        """Return the bytes of input and result, each once."""
        return 2 * prod(shape) * dtype.bytes


@library_op
class Cumsum(Running):
    """Running sums; `__call__` says what it takes."""

    kind, step = "sum", CUMSUM


@library_op
class Cumprod(Running):
    """Running products; `__call__` says what it takes."""

    kind, step = "prod", CUMPROD


cumsum = Cumsum()
"""Running sums; see `Running.__call__`."""
cumprod = Cumprod()
"""Running products; see `Running.__call__`."""
