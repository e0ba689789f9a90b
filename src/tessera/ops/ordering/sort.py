"""Sorting, and the largest elements, with their places."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from operator import index
from typing import Any, NamedTuple

import numpy as np

from tessera.driver.compile import compile as compiled
from tessera.driver.compile import target_record
from tessera.errors import CallError, caller_location
from tessera.numerics.dtypes import DType, f32
from tessera.ops import arrays, axes, rows
from tessera.ops.operation import library_op
from tessera.ops.ordering.steps import BACKWARD, LAST, ORDER, constants, is_long, kernel_of
from tessera.ops.reduce.base import checked_gradient, number_dtype
from tessera.ops.reduce.extremes import into_pair
from tessera.ops.refusals import checked
from tessera.target.artifact import Artifact


class Ordered(NamedTuple):
    """Elements in order along a dimension."""

    values: Any
    """The elements."""
    indices: Any
    """Where they come from along the dimension, i64."""


class Ordering:
    """What sorting and picking the largest share."""

    def run(self, input: Any, dim: int, kind: str, count: int | None, out: object) -> Ordered:
        """Return so many elements in order, None for all."""
        shape, dims, x = _folded(input, dim, count)
        kept = _kept(shape, dims, count)
        if out is not None:
            return Ordered(*into_pair(ORDER, (x, kind, count), out, input, kept, dims))
        values, places = ORDER(x, kind, count)
        return Ordered(axes.unfolded(values, kept, dims), axes.unfolded(places, kept, dims))

    def gradients(self, grad: Any, input: Any, dim: int, kind: str, count: int | None) -> dict[str, Any]:
        """Return gradients by the arguments' names."""
        rows.float_dtype(input, "input")
        shape, dims, x = _folded(input, dim, count)
        checked_gradient(grad, _kept(shape, dims, count))
        places = ORDER.fresh(x, kind, count)[1]
        (found,) = BACKWARD.fresh(axes.folded(grad, dims), places, x.shape[1])
        return {"input": axes.unfolded(found, shape, dims)}

    def artifact(
        self, shape: Sequence[int], dim: int, dtype: DType, kind: str, count: int | None, target: Any, dump: Any
    ) -> Artifact:
        """Return the forward kernel for contiguous arrays of a shape."""
        found = axes.extents(shape, axes.chosen(index(dim), len(shape)))
        is_gpu = target_record(target).simt
        if is_long(found[1], is_gpu):
            raise CallError(
                f"a row has {found[1]} elements",
                code="too-long",
                location=caller_location(),
                help="several kernels order such rows; ts.compile makes each of them",
            )
        sizes = dict(zip("ANB", found, strict=True)) if found[2] != 1 else {"A": found[0], "N": found[1]}
        given = constants(tuple(sizes.values()), dtype, kind, count, is_gpu)
        kernel = kernel_of(tuple(sizes.values()))
        sizes |= {"K": found[1] if count is None else count}
        return compiled(kernel, target, dump, sizes, T=dtype, **given)


@library_op
class Sort(Ordering):
    """Sorting; `__call__` says what it takes."""

    @checked
    def __call__(
        self, input: Any, dim: int = -1, descending: bool = False, stable: bool = True, *, out: object = None
    ) -> Ordered:
        """Return the elements in order along a dimension, and where they come from.

        Args:
            input: f64, f32, bf16, f16 or integers.
            dim: the dimension, counted from the end when negative.
            descending: the largest first.
            stable: taken for PyTorch's sake: equal elements always keep their order.
            out: two arrays, for values and places.

        Returns:
            `(values, indices)` of the shape of `input`, indices as i64. NaN is the largest, and zeros of both signs
            are equal. PyTorch tensors that need gradients have them.

        Raises:
            CallError: `not-an-array`, `wrong-shape`, `wrong-dtype`, `bad-axis`, `bad-argument` or
                `out-needs-no-gradient`.

        Source: `torch.sort`; Batcher, Sorting networks and their applications, 1968.
        """
        return self.run(input, dim, "max" if descending else "min", None, out)

    def backward(self, grad: Any, input: Any, dim: int = -1, descending: bool = False) -> dict[str, Any]:
        """Return the gradient of a call by the name of its argument: `{"input": …}`.

        Args:
            grad: gradient of the values.
            input: as in the call.
            dim: as in the call.
            descending: as in the call.

        Raises:
            CallError: as for the call, and `wrong-shape`.
        """
        return self.gradients(grad, input, dim, "max" if descending else "min", None)

    def reference(self, input: Any, dim: int = -1, descending: bool = False) -> tuple[Any, Any]:
        """Return the exact values in NumPy and float64, and their places."""
        return _reference(input, dim, descending)

    def explain(self) -> Any:
        """Return what the last forward kernel ran: backend, schedule, emulations.

        Raises:
            CallError: `never-run` before the first call.
        """
        return LAST.get(True, kernel_of((1, 1))).explain()

    def compile(
        self,
        shape: Sequence[int],
        dim: int = -1,
        dtype: DType = f32,
        *,
        descending: bool = False,
        target: str | None = None,
        dump: Sequence[str] = (),
    ) -> Artifact:
        """Return the forward kernel for contiguous arrays of a shape; needs no device.

        Args:
            shape: sizes of the input.
            dim: as in a call.
            dtype: of the input.
            descending: as in a call.
            target: as for `ts.compile`.
            dump: as for `ts.compile`.
        """
        return self.artifact(shape, dim, dtype, "max" if descending else "min", None, target, dump)

    @staticmethod
    def flops(shape: Sequence[int], dim: int = -1) -> int:
        """Return the comparisons of the network: for a row of `2**n` elements, `n·(n + 1) / 4` for each."""
        size = _power(shape, dim)
        return prod(shape) * size * (size + 1) // 4

    @staticmethod
    def bytes(shape: Sequence[int], dtype: DType) -> int:
        """Return the bytes of input, values and places, each once."""
        return prod(shape) * (2 * dtype.bytes + 8)


@library_op
class Topk(Ordering):
    """The largest elements; `__call__` says what it takes."""

    @checked
    def __call__(
        self, input: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True, *, out: object = None
    ) -> Ordered:
        """Return the `k` largest or smallest elements along a dimension, and where they are.

        Args:
            input: f64, f32, bf16, f16 or integers.
            k: how many, from 0 to the size of the dimension; 1 of a number, which has none.
            dim: the dimension, counted from the end when negative.
            largest: False for the smallest.
            sorted: taken for PyTorch's sake: they always come in order.
            out: two arrays, for values and places.

        Returns:
            `(values, indices)` with `k` elements along the dimension, indices as i64. NaN is the largest. Of equal
            elements the first comes first, where PyTorch takes any. PyTorch tensors that need gradients have them.

        Raises:
            CallError: `not-an-array`, `wrong-shape`, `wrong-dtype`, `bad-axis`, `bad-argument` or
                `out-needs-no-gradient`.

        Source: `torch.topk`.
        """
        return self.run(input, dim, "max" if largest else "min", index(k), out)

    def backward(self, grad: Any, input: Any, k: int, dim: int = -1, largest: bool = True) -> dict[str, Any]:
        """Return the gradient of a call by the name of its argument: `{"input": …}`; zero for what was not chosen.

        Args:
            grad: gradient of the values.
            input: as in the call.
            k: as in the call.
            dim: as in the call.
            largest: as in the call.

        Raises:
            CallError: as for the call, and `wrong-shape`.
        """
        return self.gradients(grad, input, dim, "max" if largest else "min", index(k))

    def reference(self, input: Any, k: int, dim: int = -1, largest: bool = True) -> tuple[Any, Any]:
        """Return the exact values in NumPy and float64, and their places."""
        found = (np.atleast_1d(one).swapaxes(dim, 0)[:k] for one in _reference(input, dim, largest))
        values, places = (one.swapaxes(dim, 0) for one in found)
        return values, places

    def explain(self) -> Any:
        """Return what the last forward kernel ran: backend, schedule, emulations.

        Raises:
            CallError: `never-run` before the first call.
        """
        return LAST.get(False, kernel_of((1, 1))).explain()

    def compile(
        self,
        shape: Sequence[int],
        k: int,
        dim: int = -1,
        dtype: DType = f32,
        *,
        largest: bool = True,
        target: str | None = None,
        dump: Sequence[str] = (),
    ) -> Artifact:
        """Return the forward kernel for contiguous arrays of a shape; needs no device.

        Args:
            shape: sizes of the input.
            k: as in a call.
            dim: as in a call.
            dtype: of the input.
            largest: as in a call.
            target: as for `ts.compile`.
            dump: as for `ts.compile`.
        """
        return self.artifact(shape, dim, dtype, "max" if largest else "min", k, target, dump)

    @staticmethod
    def flops(shape: Sequence[int], k: int, dim: int = -1) -> int:
        """Return the comparisons that choosing takes: for each element as many as `k` has bits."""
        return prod(shape) * max(k, 1).bit_length()

    @staticmethod
    def bytes(shape: Sequence[int], k: int, dtype: DType, dim: int = -1) -> int:
        """Return the bytes of input, values and places, each once."""
        kept = prod(_kept(tuple(shape), axes.chosen(index(dim), len(shape)), k))
        return prod(shape) * dtype.bytes + kept * (dtype.bytes + 8)


def _power(shape: Sequence[int], dim: int) -> int:
    """Return how often a dimension is halved until one element is left."""
    return max(axes.extents(shape, axes.chosen(index(dim), len(shape)))[1] - 1, 0).bit_length()


def _kept(shape: Sequence[Any], dims: Sequence[int], count: int | None) -> tuple[Any, ...]:
    """Return the shape of a result."""
    return tuple(size if count is None or at not in dims else count for at, size in enumerate(shape))


def _folded(input: Any, dim: int, count: int | None) -> tuple[tuple[Any, ...], tuple[int, ...], Any]:
    """Return the shape, the dimension, and the array as rows or blocks of it.

    Raises:
        CallError: `not-an-array`, `wrong-dtype`, `bad-axis` or `bad-argument`.
    """
    shape = arrays.shape_of(input, "input")
    number_dtype(input)
    dims = axes.chosen(index(dim), len(shape))
    x = axes.folded(input, dims)
    if count is not None and not (0 if shape else 1) <= count <= x.shape[1]:  # a number has no dimension to cut
        raise CallError(
            f"k is {count} of {x.shape[1]} elements",
            code="bad-argument",
            location=caller_location(),
            help="it is from 0 to the size of the dimension, and 1 of a number",
        )
    return shape, dims, x


def _reference(input: Any, dim: int, descending: bool) -> tuple[Any, Any]:
    x = arrays.host(input)
    wide = np.atleast_1d(x)
    ranks = np.unique(wide, return_inverse=True)[1].reshape(wide.shape)
    places = np.argsort(-ranks if descending else ranks, axis=dim, kind="stable")
    return np.take_along_axis(wide, places, dim).reshape(x.shape), places.reshape(x.shape)


sort = Sort()
"""Sorting; see `Sort.__call__`."""
topk = Topk()
"""The largest elements; see `Topk.__call__`."""
