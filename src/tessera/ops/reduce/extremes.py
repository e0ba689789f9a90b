"""Largest and smallest elements and their places."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any, NamedTuple

import numpy as np

from tessera.errors import CallError, caller_location
from tessera.numerics.dtypes import i64
from tessera.ops import arrays, axes, rows
from tessera.ops.operation import library_op
from tessera.ops.reduce.base import Dims, ExtremeReduction, checked_gradient, number_dtype
from tessera.ops.reduce.steps import BACKWARD, EXTREMES, extremes_kept
from tessera.ops.refusals import checked
from tessera.ops.steps import Step


class Extreme(NamedTuple):
    """Extremes along a dimension."""

    values: Any
    """The elements."""
    indices: Any
    """Their places along the dimension, i64: the first of equal ones."""


class Picked(ExtremeReduction):
    """Extremes with their places."""

    def pairs(self, input: Any, dim: Dims, keepdim: bool, outs: tuple[Any, Any]) -> tuple[Any, Any]:
        """Return values and places, in given arrays where they are not None."""
        shape, dtype = arrays.shape_of(input, "input"), number_dtype(input)
        dims = axes.chosen(dim, len(shape))
        x, kept = axes.folded(input, dims), axes.left(shape, dims, keepdim)
        if x.shape[1] == 0 and 0 not in kept:
            raise CallError(
                f"argument 'input' has the shape {tuple(shape)}, and no elements to choose from",
                code="wrong-shape",
                location=caller_location(),
                help="reduce along a dimension that has elements",
            )
        call = x, self.kind, self._is_shared(dim)
        if outs[0] is None and outs[1] is None:
            values, places = EXTREMES(*call)
            return values.reshape(kept), places.reshape(kept)
        rows.check_two(*outs)
        results = EXTREMES.results(*call)
        goals: list[Any] = []
        for out, made, wanted in zip(outs, results, (dtype, i64), strict=True):
            if out is not None:
                rows.checked_out(out, kept, wanted, input)
            goal = None if out is None else axes.place_left(out, shape, dims, tuple(made.shape))
            goals.append(made if goal is None else goal)
        EXTREMES.into(tuple(goals), *call)
        for out, goal, made in zip(outs, goals, results, strict=True):
            if out is not None and goal is made:
                out[...] = made.reshape(kept)
        return outs

    def run(self, input: Any, dim: Dims, keepdim: bool, out: Any) -> Any:
        """Return values alone."""
        return self.pairs(input, dim, keepdim, (out, None))[0]

    def gradients(self, grad: Any, input: Any, dim: Dims, keepdim: bool) -> dict[str, Any]:
        """Return gradients by the arguments' names."""
        shape = arrays.shape_of(input, "input")
        rows.float_dtype(input, "input")
        dims = axes.chosen(dim, len(shape))
        checked_gradient(grad, axes.left(shape, dims, keepdim))
        call = axes.folded(input, dims), self.kind, self._is_shared(dim)
        results = EXTREMES.fresh(*call)
        (found,) = BACKWARD.fresh(grad.reshape(tuple(results[0].shape)), *extremes_kept(call, results))
        return {"input": axes.unfolded(found, shape, dims)}

    def _is_shared(self, dim: Dims) -> bool:
        """Return whether equal elements share the gradient of the one that is chosen, as in PyTorch."""
        return self.kind == "size" or dim is None


class Size(Picked):
    """The largest size, a norm."""

    kind = "size"


SIZE = Size()


class Chosen(Picked):
    """Values for all elements, values and places along a dimension."""

    @checked
    def __call__(self, input: Any, dim: int | None = None, keepdim: bool = False, *, out: object = None) -> Any:
        """Return the extreme of all elements, or along a dimension extremes and places; NaN is in front of numbers.

        Args:
            input: f64, f32, bf16, f16 or integers.
            dim: the dimension, counted from the end when negative; None for all.
            keepdim: whether it stays, with one element.
            out: array for the result; along a dimension two, for values and places.

        Returns:
            An array, or `(values, indices)`: of equal elements the first. PyTorch tensors that need gradients have
            them: along a dimension the chosen element has its result's, of all elements equal ones share it.

        Raises:
            CallError: `not-an-array`, `wrong-shape` (also of no elements), `wrong-dtype`, `bad-axis`, `bad-argument`
                or `out-needs-no-gradient`.

        Source: `torch.max`, `torch.min`.
        """
        if dim is None:
            return self.run(input, None, keepdim, out)
        return Extreme(*self.pairs(input, index(dim), keepdim, (None, None) if out is None else pair(out)))

    def backward(self, grad: Any, input: Any, dim: int | None = None, keepdim: bool = False) -> dict[str, Any]:
        """Return the gradient of a call by the name of its argument: `{"input": …}`.

        Args:
            grad: gradient of the values.
            input: as in the call, like all that follow.
            dim: as in the call.
            keepdim: as in the call.

        Raises:
            CallError: as for the call.
        """
        return self.gradients(grad, input, dim, keepdim)

    def reference(self, input: Any, dim: int | None = None, keepdim: bool = False) -> Any:
        """Return the exact values in NumPy and float64."""
        x = arrays.host(input)
        return (x.min if self.kind == "min" else x.max)(axes.chosen(dim, x.ndim), keepdims=keepdim)


class Place(Picked):
    """Places alone."""

    @checked
    def __call__(self, input: Any, dim: int | None = None, keepdim: bool = False, *, out: Any = None) -> Any:
        """Return the place of the extreme along a dimension, or among all elements in row-major order, as i64.

        Args:
            input: f64, f32, bf16, f16 or integers.
            dim: the dimension, counted from the end when negative; None for all.
            keepdim: whether it stays, with one element.
            out: array for the result.

        Returns:
            An array: the first of equal elements, and NaN is in front of numbers.

        Raises:
            CallError: `not-an-array`, `wrong-shape` (also of no elements), `wrong-dtype`, `bad-axis` or
                `bad-argument`.

        Source: `torch.argmax`, `torch.argmin`.
        """
        return self.pairs(input, dim if dim is None else index(dim), keepdim, (None, out))[1]

    def reference(self, input: Any, dim: int | None = None, keepdim: bool = False) -> Any:
        """Return the places in NumPy."""
        x = arrays.host(input)
        found = (np.argmin if self.kind == "min" else np.argmax)(x, dim)
        return np.reshape(found, axes.left(x.shape, axes.chosen(dim, x.ndim), keepdim))


def pair(out: object) -> tuple[Any, Any]:
    """Return arrays for values and places.

    Raises:
        CallError: `bad-argument`.
    """
    found: Any = out
    if not isinstance(out, tuple | list) or len(found) != 2:
        raise CallError(
            "out is no pair", code="bad-argument", location=caller_location(), help="give (values, indices)"
        )
    return found[0], found[1]


def into_pair(
    step: Step, given: tuple[Any, ...], out: object, input: Any, kept: Sequence[Any], dims: Sequence[int]
) -> tuple[Any, Any]:
    """Compute a step's values and places in given arrays, which are returned.

    Args:
        step: takes the folded input first.
        given: what it is called with.
        out: the arrays.
        input: the input as it was given.
        kept: their shape.
        dims: the dimension that places are along.

    Raises:
        CallError: `bad-argument`, `wrong-shape`, `wrong-dtype`, `overlapping-arguments` or `out-needs-no-gradient`.
    """
    outs, results = pair(out), step.results(*given)
    goals: list[Any] = []
    for one, made, dtype in zip(outs, results, (arrays.dtype_of(input), i64), strict=True):
        rows.checked_out(one, kept, dtype, input)
        goal = axes.place_along(one, dims, tuple(made.shape))
        goals.append(made if goal is None else goal)
    rows.check_two(*outs)
    step.into(tuple(goals), *given)
    for one, goal, made in zip(outs, goals, results, strict=True):
        if goal is made:
            one[...] = axes.unfolded(made, kept, dims)
    return outs


@library_op
class Max(Chosen):
    """The largest; `__call__` says what it takes."""

    kind = "max"


@library_op
class Min(Chosen):
    """The smallest; `__call__` says what it takes."""

    kind = "min"


@library_op
class Argmax(Place):
    """The place of the largest; `__call__` says what it takes."""

    kind = "max"


@library_op
class Argmin(Place):
    """The place of the smallest; `__call__` says what it takes."""

    kind = "min"


max = Max()
"""The largest; see `Chosen.__call__`."""
min = Min()
"""The smallest; see `Chosen.__call__`."""
argmax = Argmax()
"""The place of the largest; see `Place.__call__`."""
argmin = Argmin()
"""The place of the smallest; see `Place.__call__`."""
