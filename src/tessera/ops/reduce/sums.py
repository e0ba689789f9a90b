"""Sums, means, variances and norms."""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.errors import CallError, caller_location
from tessera.numerics.dtypes import BY_NAME
from tessera.ops import arrays, axes, rows
from tessera.ops.operation import library_op
from tessera.ops.reduce.base import Dims, SumReduction, number_dtype
from tessera.ops.reduce.extremes import SIZE
from tessera.ops.refusals import checked


@library_op
class Sum(SumReduction):
    """The sum; `__call__` says what it takes."""

    kind = "sum"

    @checked
    def __call__(
        self, input: Any, dim: Dims = None, keepdim: bool = False, *, dtype: object = None, out: Any = None
    ) -> Any:
        """Return the sum along dimensions.

        Args:
            input: f64, f32, bf16, f16, integers or bool.
            dim: dimension or dimensions, counted from the end when negative; None for all. Those that lie apart are
                copied together.
            keepdim: whether they stay, with one element.
            dtype: of the result, one of floating point numbers; by default that of `input`, i64 for integers.
            out: array for the result.

        Returns:
            An array. PyTorch tensors that need gradients have them.

        Raises:
            CallError: `not-an-array`, `wrong-shape`, `wrong-dtype`, `bad-axis`, `bad-argument` or
                `out-needs-no-gradient`.

        Numerics:
            Added up in f32 (f64 for f64, i64 for integers, which wrap), in an order that depends on sizes and machine
            alone: the same bits in every run. Rounded once.

        Source: `torch.sum`.
        """
        found = number_dtype(input, ("bool",))
        wanted = axes.dtype_asked(dtype, found if found.is_float else BY_NAME["i64"])
        return self.run(input, dim, keepdim, wanted, out, self.kind)

    def backward(self, grad: Any, input: Any, dim: Dims = None, keepdim: bool = False) -> dict[str, Any]:
        """Return the gradient of a call by the name of its argument: `{"input": …}`.

        Args:
            grad: gradient of the result.
            input: as in the call, like all that follow.
            dim: as in the call.
            keepdim: as in the call.

        Raises:
            CallError: as for the call.
        """
        return self.gradients(grad, input, dim, keepdim, self.kind)

    def reference(self, input: Any, dim: Dims = None, keepdim: bool = False) -> Any:
        """Return the exact result in NumPy and float64."""
        x = arrays.host(input)
        return x.sum(axes.chosen(dim, x.ndim), keepdims=keepdim)


@library_op
class Mean(SumReduction):
    """The mean; `__call__` says what it takes."""

    kind = "mean"

    @checked
    def __call__(
        self, input: Any, dim: Dims = None, keepdim: bool = False, *, dtype: object = None, out: Any = None
    ) -> Any:
        """Return the mean along dimensions; NaN of no elements.

        Args:
            input: f64, f32, bf16 or f16.
            dim: as for `sum`.
            keepdim: as for `sum`.
            dtype: as for `sum`.
            out: as for `sum`.

        Raises:
            CallError: as for `sum`.

        Numerics:
            As for `sum`; divided before it is rounded.

        Source: `torch.mean`.
        """
        wanted = axes.dtype_asked(dtype, rows.float_dtype(input, "input"))
        return self.run(input, dim, keepdim, wanted, out, self.kind)

    def backward(self, grad: Any, input: Any, dim: Dims = None, keepdim: bool = False) -> dict[str, Any]:
        """Return the gradient of a call by the name of its argument; arguments as for `sum`."""
        return self.gradients(grad, input, dim, keepdim, self.kind)

    def reference(self, input: Any, dim: Dims = None, keepdim: bool = False) -> Any:
        """Return the exact result in NumPy and float64."""
        x = arrays.host(input)
        axis = axes.chosen(dim, x.ndim)
        with np.errstate(invalid="ignore"):
            return x.sum(axis, keepdims=keepdim) / np.float64(axes.extents(x.shape, axis)[1])


@library_op
class Var(SumReduction):
    """The variance; `__call__` says what it takes."""

    kind = "var"

    @checked
    def __call__(
        self, input: Any, dim: Dims = None, *, correction: float = 1, keepdim: bool = False, out: Any = None
    ) -> Any:
        """Return the variance along dimensions: squares of distances from the mean by their number less `correction`.

        Args:
            input: f64, f32, bf16 or f16.
            dim: as for `sum`.
            correction: 1 estimates a population's variance from a sample. NaN or inf where not more elements are there.
            keepdim: as for `sum`.
            out: as for `sum`.

        Raises:
            CallError: as for `sum`.

        Numerics:
            The mean is computed first, and the squares are those of distances from it.

        Source: `torch.var`.
        """
        return self.run(input, dim, keepdim, rows.float_dtype(input, "input"), out, self.kind, correction)

    def backward(
        self, grad: Any, input: Any, dim: Dims = None, *, correction: float = 1, keepdim: bool = False
    ) -> dict[str, Any]:
        """Return the gradient of a call by the name of its argument; arguments as in the call."""
        return self.gradients(grad, input, dim, keepdim, self.kind, correction)

    def reference(self, input: Any, dim: Dims = None, *, correction: float = 1, keepdim: bool = False) -> Any:
        """Return the exact result in NumPy and float64."""
        x = arrays.host(input)
        axis = axes.chosen(dim, x.ndim)
        count = axes.extents(x.shape, axis)[1]
        with np.errstate(invalid="ignore", divide="ignore"):
            apart = x - x.sum(axis, keepdims=True) / np.float64(count)
            return (apart * apart).sum(axis, keepdims=keepdim) / np.float64(max(count - correction, 0))


@library_op
class Norm(SumReduction):
    """The norm of vectors; `__call__` says what it takes."""

    kind = "norm2"

    @checked
    def __call__(
        self,
        input: Any,
        ord: float = 2,
        dim: Dims = None,
        keepdim: bool = False,
        *,
        dtype: object = None,
        out: Any = None,
    ) -> Any:
        """Return the norm along dimensions.

        Args:
            input: f64, f32, bf16 or f16.
            ord: exponent, at least 0: 2, root of the sum of squares; 1, sum of sizes; `inf`, the largest size; 0, how
                many elements are not 0.
            dim: as for `sum`.
            keepdim: as for `sum`.
            dtype: as for `sum`; with `ord=inf` that of `input` only.
            out: as for `sum`.

        Raises:
            CallError: as for `sum`, `bad-argument` for another `ord`.

        Numerics:
            As for `sum`; powers past the largest f32 are infinite. Equal elements share the gradient of the largest
            size, and that of a norm that is 0 is 0.

        Source: `torch.linalg.vector_norm`.
        """
        wanted = axes.dtype_asked(dtype, rows.float_dtype(input, "input"))
        kind = _kind(ord)
        if kind == "size":
            if wanted.name != arrays.dtype_of(input).name:
                raise CallError(
                    f"dtype is {wanted} of a largest size in {arrays.dtype_of(input)}",
                    code="wrong-dtype",
                    location=caller_location(),
                    help="convert it",
                )
            return SIZE.run(input, dim, keepdim, out)
        return self.run(input, dim, keepdim, wanted, out, _of_one(kind, input, dim), _power(kind, ord))

    def backward(
        self, grad: Any, input: Any, ord: float = 2, dim: Dims = None, keepdim: bool = False
    ) -> dict[str, Any]:
        """Return the gradient of a call by the name of its argument; arguments as in the call."""
        kind = _kind(ord)
        if kind == "size":
            return SIZE.gradients(grad, input, dim, keepdim)
        return self.gradients(grad, input, dim, keepdim, _of_one(kind, input, dim), _power(kind, ord))

    def reference(self, input: Any, ord: float = 2, dim: Dims = None, keepdim: bool = False) -> Any:
        """Return the exact result in NumPy and float64."""
        x = np.abs(arrays.host(input))
        axis, kind = axes.chosen(dim, x.ndim), _kind(ord)
        if kind == "size":
            return x.max(axis, keepdims=keepdim)
        if kind == "norm1":
            return x.sum(axis, keepdims=keepdim)
        if kind == "norm0":
            return (x != 0).sum(axis, keepdims=keepdim).astype(np.float64)
        return (x ** float(ord)).sum(axis, keepdims=keepdim) ** (1 / float(ord))


def _of_one(kind: str, input: Any, dim: Dims) -> str:
    """Return the kind of norm: of one element each is its size, whose square need not be there."""
    shape = arrays.shape_of(input, "input")
    is_one = axes.extents(shape, axes.chosen(dim, len(shape)))[1] == 1
    return "norm1" if is_one and kind != "norm0" else kind


def _power(kind: str, ord: float) -> float:
    """Return the exponent of a norm whose kind does not say it."""
    return float(ord) if kind == "norm of power" else 0.0


def _kind(ord: float) -> str:
    """Return what the step calls a norm.

    Raises:
        CallError: `bad-argument`.
    """
    if not ord >= 0:
        raise CallError(f"ord is {ord}", code="bad-argument", location=caller_location(), help="it is at least 0")
    found = {0.0: "norm0", 1.0: "norm1", 2.0: "norm2", float("inf"): "size"}
    return found.get(float(ord), "norm of power")


sum = Sum()
"""The sum; see `Sum.__call__`."""
mean = Mean()
"""The mean; see `Mean.__call__`."""
var = Var()
"""The variance; see `Var.__call__`."""
norm = Norm()
"""The norm; see `Norm.__call__`."""
