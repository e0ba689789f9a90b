"""Running extremes with their places."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from operator import index
from typing import Any, ClassVar

import numpy as np

from tessera.driver.compile import compile as compiled
from tessera.numerics.dtypes import DType, f32, i64
from tessera.ops import arrays, axes, rows
from tessera.ops.operation import library_op
from tessera.ops.reduce.base import checked_gradient, number_dtype
from tessera.ops.reduce.extremes import Extreme, into_pair
from tessera.ops.reduce.steps import accumulator, blocks, last_of
from tessera.ops.refusals import checked
from tessera.ops.running import extreme_kernels
from tessera.ops.steps import Arguments, Gradient, Step, like
from tessera.target.artifact import Artifact

_BLOCK = 512
"""Elements that a program takes at once: places take registers too."""
_LAST: dict[str, Any] = {}
"""The kernel that ran last, by the kind of extreme."""


def _kernel(shape: Sequence[int]) -> Any:
    return extreme_kernels.rows if len(shape) == 2 else extreme_kernels.columns


def _results(x: Any, kind: str) -> Arguments:
    return like(x, x.shape), like(x, x.shape, i64)


def _launch(results: Arguments, x: Any, kind: str) -> None:
    if 0 in x.shape:
        return
    shape, dtype = tuple(map(int, x.shape)), arrays.dtype_of(x)
    kernel = _LAST[kind] = _kernel(shape)
    kernel(x, *results, kind=kind, last=last_of(dtype, kind), acc=accumulator(dtype, dtype), **blocks(shape, _BLOCK))


def _gradient_results(grad: Any, places: Any) -> Arguments:
    return (like(grad, grad.shape),)


def _launch_gradient(results: Arguments, grad: Any, places: Any) -> None:
    if 0 in grad.shape:
        return
    shape, dtype = tuple(map(int, grad.shape)), arrays.dtype_of(grad)
    kernel: Any = extreme_kernels.rows_backward if len(shape) == 2 else extreme_kernels.columns_backward
    kernel(grad, places, results[0], acc=accumulator(dtype, dtype), **blocks(shape, _BLOCK))


BACKWARD = Step(
    "cumulative_extremes_backward",
    "(Tensor grad, Tensor places) -> Tensor",
    _gradient_results,
    _launch_gradient,
    tangents="linear",
    transposed="taken",
)

EXTREMES = Step(
    "cumulative_extremes",
    "(Tensor x, str kind) -> (Tensor, Tensor)",
    _results,
    _launch,
    Gradient(
        BACKWARD,
        lambda _given, results: (results[1],),
        lambda kept, grads, _needed: (grads[0], *kept),
        lambda _kept: (0, None),
    ),
    "taken",
)


class RunningExtreme:
    """A running extreme; the subclasses say which."""

    kind: ClassVar[str]
    """`max` or `min`."""

    @checked
    def __call__(self, input: Any, dim: int, *, out: object = None) -> Extreme:
        """Return the extreme of each element and all before it along a dimension, and its place.

        Args:
            input: f64, f32, bf16, f16 or integers.
            dim: the dimension, counted from the end when negative. A program goes along it from end to end.
            out: two arrays, for values and places.

        Returns:
            `(values, indices)` of the shape of `input`, places as i64: of equal elements the last, and NaN is in front
            of numbers. PyTorch tensors that need gradients have them.

        Raises:
            CallError: `not-an-array`, `wrong-shape`, `wrong-dtype`, `bad-axis`, `bad-argument` or
                `out-needs-no-gradient`.

        Source: `torch.cummax`, `torch.cummin`.
        """
        shape = arrays.shape_of(input, "input")
        number_dtype(input)
        dims = axes.chosen(index(dim), len(shape))
        x = axes.folded(input, dims)
        if out is not None:
            return Extreme(*into_pair(EXTREMES, (x, self.kind), out, input, shape, dims))
        values, places = EXTREMES(x, self.kind)
        return Extreme(axes.unfolded(values, shape, dims), axes.unfolded(places, shape, dims))

    def backward(self, grad: Any, input: Any, dim: int) -> dict[str, Any]:
        """Return the gradient of a call by the name of its argument: `{"input": …}`.

        Args:
            grad: gradient of the values.
            input: as in the call.
            dim: as in the call.

        Raises:
            CallError: as for the call.
        """
        shape = arrays.shape_of(input, "input")
        rows.float_dtype(input, "input")
        checked_gradient(grad, shape)
        dims = axes.chosen(dim, len(shape))
        places = EXTREMES.fresh(axes.folded(input, dims), self.kind)[1]
        (found,) = BACKWARD.fresh(axes.folded(grad, dims), places)
        return {"input": axes.unfolded(found, shape, dims)}

    def reference(self, input: Any, dim: int) -> Any:
        """Return the exact values in NumPy and float64."""
        x = arrays.host(input)
        return (np.minimum if self.kind == "min" else np.maximum).accumulate(np.atleast_1d(x), dim).reshape(x.shape)

    def explain(self) -> Any:
        """Return what the last forward kernel ran: backend, schedule, emulations.

        Raises:
            CallError: `never-run` before the first call.
        """
        return _LAST.get(self.kind, extreme_kernels.rows).explain()

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
        given: dict[str, Any] = {"T": dtype, "kind": self.kind, "last": last_of(dtype, self.kind)}
        given |= {"acc": accumulator(dtype, dtype), **blocks(tuple(sizes.values()), _BLOCK)}
        return compiled(_kernel(tuple(sizes.values())), target, dump, sizes, **given)

    @staticmethod
    def flops(shape: Sequence[int]) -> int:
        """Return the operations of a call: one for each element."""
        return prod(shape)

    @staticmethod
    def bytes(shape: Sequence[int], dtype: DType) -> int:
        """Return the bytes of input, values and places, each once."""
        return prod(shape) * (2 * dtype.bytes + 8)


@library_op
class Cummax(RunningExtreme):
    """The largest so far; `__call__` says what it takes."""

    kind = "max"


@library_op
class Cummin(RunningExtreme):
    """The smallest so far; `__call__` says what it takes."""

    kind = "min"


cummax = Cummax()
"""The largest so far; see `RunningExtreme.__call__`."""
cummin = Cummin()
"""The smallest so far; see `RunningExtreme.__call__`."""
