"""Elements without those that repeat the one before."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from operator import index
from typing import Any

import numpy as np

from tessera.driver.compile import compile as compiled
from tessera.numerics.dtypes import DType, f32
from tessera.ops import arrays, axes, reduce, rows
from tessera.ops.counting import kernels
from tessera.ops.counting.steps import PLACES, RUNS
from tessera.ops.operation import library_op
from tessera.ops.reduce.base import number_dtype
from tessera.ops.refusals import checked, refused
from tessera.ops.steps import without_gradient
from tessera.ops.traced import check_known
from tessera.target.artifact import Artifact


@library_op
class UniqueConsecutive:
    """Elements without those that repeat the one before; `__call__` says what it takes."""

    @checked
    def __call__(
        self, input: Any, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
    ) -> Any:
        """Return the first element of each run of equal ones.

        Args:
            input: f64, f32, bf16, f16 or integers; of any shape.
            return_inverse: whether the number of each element's run is wanted.
            return_counts: whether the runs' lengths are wanted.
            dim: the dimension along which parts of the input are compared, counted from the end when negative; None
                for elements in row-major order.

        Returns:
            The elements or parts, or a tuple of them, of the runs' numbers (i64, of the shape of `input`, or one for
            each part) and of their lengths (i64), as far as they are wanted. NaN is equal to nothing. How many runs
            there are is read back, so a call waits for the device. There are no gradients.

        Raises:
            CallError: `not-an-array`, `wrong-dtype`, `wrong-shape` for parts without elements, `bad-axis`,
                `bad-argument`, or `no-gradient` for an input that needs one.

        Source: `torch.unique_consecutive`.
        """
        shape = arrays.shape_of(input, "input")
        number_dtype(input)
        check_known(input, "the number of runs")
        x = without_gradient(input, "input")
        axis = None if dim is None else axes.chosen(index(dim), len(shape))[0]
        x = rows.vector(x) if axis is None else _parts(x, axis)
        (places,) = PLACES(x)
        count = int(arrays.host(reduce.max(places))) if x.shape[0] else 0
        values, inverse, counts = RUNS(x, places, count)
        if axis is not None:
            values = _along(values, shape, axis)
        if not (return_inverse or return_counts):
            return values
        inverse = inverse if len(shape) == 1 or axis is not None else inverse.reshape(tuple(shape))
        return values, *((inverse,) if return_inverse else ()), *((counts,) if return_counts else ())

    def reference(self, input: Any, dim: int | None = None) -> tuple[Any, Any, Any]:
        """Return elements or parts, numbers of runs and their lengths in NumPy and float64."""
        x = arrays.host(input)
        flat = x.reshape(-1) if dim is None else np.moveaxis(x, dim, 0)
        differs = (flat[1:] != flat[:-1]).any(tuple(range(1, flat.ndim)))
        first = np.concatenate([np.ones(min(len(flat), 1), bool), differs])
        places, numbers = np.flatnonzero(first), np.cumsum(first) - 1
        values = flat[first] if dim is None else np.moveaxis(flat[first], 0, dim)
        return values, numbers.reshape(x.shape) if dim is None else numbers, np.diff(places, append=len(flat))

    def explain(self) -> Any:
        """Return what the last kernel that takes elements ran: backend, schedule, emulations.

        Raises:
            CallError: `never-run` before the first call.
        """
        return kernels.pick.explain()

    def compile(self, dtype: DType = f32, *, target: str | None = None, dump: Sequence[str] = ()) -> Artifact:
        """Return the kernel that takes the first elements of runs; needs no device.

        Args:
            dtype: of the input.
            target: as for `ts.compile`.
            dump: as for `ts.compile`.
        """
        return compiled(kernels.pick, target, dump, {}, T=dtype)

    @staticmethod
    def flops(shape: Sequence[int]) -> int:
        """Return the operations of a call: a comparison and an addition an element."""
        return 2 * prod(shape)

    @staticmethod
    def bytes(shape: Sequence[int], dtype: DType, count: int) -> int:
        """Return the bytes of an input, of so many runs with their lengths, and of the runs' numbers, each once."""
        return prod(shape) * (dtype.bytes + 8) + count * (dtype.bytes + 8)


def _parts(x: Any, dim: int) -> Any:
    """Return an array's parts along a dimension as rows, a vector of one dimension as it is.

    Raises:
        CallError: `wrong-shape`.
    """
    shape = tuple(arrays.shape_of(x, "input"))
    if len(shape) < 2:
        return rows.vector(x)
    width = prod(shape[:dim] + shape[dim + 1 :])
    if width == 0 and shape[dim]:
        raise refused(f"input has the shape {shape}", "wrong-shape", "parts without elements cannot be told apart")
    return (x if dim == 0 else arrays.axis_moved(x, dim, 0)).reshape(shape[dim], width)


def _along(values: Any, shape: Sequence[Any], dim: int) -> Any:
    """Return rows as parts along a dimension of an array of a shape."""
    if len(shape) < 2:
        return values
    found = values.reshape(values.shape[0], *shape[:dim], *shape[dim + 1 :])
    return found if dim == 0 else arrays.axis_moved(found, 0, dim)


unique_consecutive = UniqueConsecutive()
"""Elements without those that repeat the one before; see `UniqueConsecutive.__call__`."""
