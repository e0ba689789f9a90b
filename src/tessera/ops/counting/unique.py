"""Elements without those that repeat the one before."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from tessera.driver.compile import compile as compiled
from tessera.numerics.dtypes import DType, f32
from tessera.ops import arrays, reduce, rows
from tessera.ops.counting import kernels
from tessera.ops.counting.steps import PLACES, RUNS, without_gradient
from tessera.ops.operation import library_op
from tessera.ops.reduce.base import number_dtype
from tessera.ops.refusals import checked
from tessera.ops.traced import check_known
from tessera.target.artifact import Artifact


@library_op
class UniqueConsecutive:
    """Elements without those that repeat the one before; `__call__` says what it takes."""

    @checked
    def __call__(self, input: Any, return_inverse: bool = False, return_counts: bool = False) -> Any:
        """Return the first element of each run of equal ones.

        Args:
            input: f64, f32, bf16, f16 or integers; of any shape, taken in row-major order.
            return_inverse: whether the number of each element's run is wanted.
            return_counts: whether the runs' lengths are wanted.

        Returns:
            The elements, or a tuple of them, of the runs' numbers (i64, of the shape of `input`) and of their lengths
            (i64), as far as they are wanted. NaN is equal to nothing. How many runs there are is read back, so a call
            waits for the device. There are no gradients.

        Raises:
            CallError: `not-an-array`, `wrong-dtype`, `bad-argument`, or `no-gradient` for an input that needs one.

        Source: `torch.unique_consecutive`.
        """
        shape = arrays.shape_of(input, "input")
        number_dtype(input)
        check_known(input, "the number of runs")
        x = rows.vector(without_gradient(input, "input"))
        (places,) = PLACES(x)
        count = int(arrays.host(reduce.max(places))) if x.shape[0] else 0
        values, inverse, counts = RUNS(x, places, count)
        if not (return_inverse or return_counts):
            return values
        inverse = inverse if len(shape) == 1 else inverse.reshape(tuple(shape))
        return values, *((inverse,) if return_inverse else ()), *((counts,) if return_counts else ())

    def reference(self, input: Any) -> tuple[Any, Any, Any]:
        """Return elements, numbers of runs and their lengths in NumPy and float64."""
        x = arrays.host(input)
        flat = x.reshape(-1)
        first = np.concatenate([np.ones(min(flat.size, 1), bool), flat[1:] != flat[:-1]])
        places = np.flatnonzero(first)
        return flat[first], (np.cumsum(first) - 1).reshape(x.shape), np.diff(places, append=flat.size)

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


unique_consecutive = UniqueConsecutive()
"""Elements without those that repeat the one before; see `UniqueConsecutive.__call__`."""
