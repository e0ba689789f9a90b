"""How many elements are in ranges of one width."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, prod
from operator import index
from typing import Any

import numpy as np

from tessera.driver.compile import compile as compiled
from tessera.errors import CallError, caller_location
from tessera.numerics.dtypes import DType, f32, i32
from tessera.ops import arrays, reduce, rows
from tessera.ops.counting import kernels
from tessera.ops.counting.steps import RANGES
from tessera.ops.operation import library_op
from tessera.ops.refusals import checked
from tessera.ops.steps import without_gradient
from tessera.target.artifact import Artifact


@library_op
class Histogram:
    """How many elements are in ranges of one width; `__call__` says what it takes."""

    @checked
    def __call__(self, input: Any, bins: int = 100, min: float = 0, max: float = 0, *, out: Any = None) -> Any:
        """Return how many elements are in each of `bins` ranges of one width from `min` to `max`.

        Args:
            input: f64, f32, bf16 or f16, of any shape.
            bins: how many ranges. Each has its lower end; the last has `max` too.
            min: where the first begins.
            max: where the last ends. Where `min` and `max` are equal, they are the smallest and the largest element,
                which are read back; where these are equal, ranges go from 1 below to 1 above.
            out: array for the result.

        Returns:
            An array `(bins,)` of the dtype of `input`. Elements outside and NaN are not counted. There are no
            gradients.

        Raises:
            CallError: `not-an-array`, `wrong-shape`, `wrong-dtype`, `bad-argument` (also for ends that are not
                finite), or `no-gradient` for an input that needs one.

        Numerics:
            Counted in i64 and rounded once. An element's range is computed in f32 (f64 for f64): one that is a
            rounding from an end may count on its other side.

        Source: `torch.histc`.
        """
        arrays.shape_of(input, "input")
        rows.float_dtype(input, "input")
        x = rows.vector(without_gradient(input, "input"))
        if index(bins) < 1:
            raise _wrong(f"bins is {bins}", "it is 1 or more")
        low, high = _ends(x, min, max)
        if out is None:
            return RANGES(x, index(bins), low, high)[0]
        rows.checked_out(out, (index(bins),), arrays.dtype_of(input), input)
        RANGES.into((out,), x, index(bins), low, high)
        return out

    def reference(self, input: Any, bins: int = 100, min: float = 0, max: float = 0) -> Any:
        """Return the exact counts in NumPy."""
        x = arrays.host(input).reshape(-1)
        low, high = (x.min(), x.max()) if min == max and x.size else (min, max)
        low, high = (low - 1, high + 1) if low == high else (low, high)
        return np.histogram(x[(x >= low) & (x <= high)], bins, (low, high))[0]

    def explain(self) -> Any:
        """Return what the last kernel ran: backend, schedule, emulations.

        Raises:
            CallError: `never-run` before the first call.
        """
        return kernels.ranges.explain()

    def compile(self, dtype: DType = f32, *, target: str | None = None, dump: Sequence[str] = ()) -> Artifact:
        """Return the kernel that counts; needs no device.

        Args:
            dtype: of the input.
            target: as for `ts.compile`.
            dump: as for `ts.compile`.
        """
        return compiled(kernels.ranges, target, dump, {}, F=dtype, N=i32, acc=rows.accumulator(dtype))

    @staticmethod
    def flops(shape: Sequence[int]) -> int:
        """Return the operations of a call: a difference, a product, a quotient and an addition an element."""
        return 4 * prod(shape)

    @staticmethod
    def bytes(shape: Sequence[int], dtype: DType, bins: int = 100) -> int:
        """Return the bytes of input and result, each once."""
        return (prod(shape) + bins) * dtype.bytes


def _ends(x: Any, low: float, high: float) -> tuple[float, float]:
    """Return where ranges begin and end.

    Raises:
        CallError: `bad-argument`.
    """
    if low == high and x.shape[0]:
        low, high = (float(arrays.host(one(x))) for one in (reduce.min, reduce.max))
    if not (isfinite(low) and isfinite(high)):
        raise _wrong(f"ranges go from {low} to {high}", "give finite ends")
    if low > high:
        raise _wrong(f"min is {low}, max is {high}", "max is the larger")
    return (low - 1.0, high + 1.0) if low == high else (float(low), float(high))


def _wrong(message: str, hint: str) -> CallError:
    return CallError(message, code="bad-argument", location=caller_location(), help=hint)


histogram = Histogram()
"""How many elements are in ranges of one width; see `Histogram.__call__`."""
