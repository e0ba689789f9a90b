"""How often numbers are there, and sums of their weights."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from operator import index
from typing import Any

import numpy as np

from tessera.driver.compile import compile as compiled
from tessera.errors import CallError, caller_location
from tessera.numerics.dtypes import DType, i32, i64
from tessera.ops import arrays, reduce, rows
from tessera.ops.counting import kernels
from tessera.ops.counting.steps import COUNT, WIDE
from tessera.ops.lookup.steps import BACKWARD as ROW_SUMS
from tessera.ops.operation import library_op
from tessera.ops.reduce.base import INTEGERS
from tessera.ops.refusals import checked
from tessera.ops.steps import without_gradient
from tessera.ops.traced import check_known
from tessera.runtime import to_numpy
from tessera.target.artifact import Artifact


@library_op
class Bincount:
    """How often numbers are there; `__call__` says what it takes."""

    @checked
    def __call__(self, input: Any, weights: Any = None, minlength: int = 0) -> Any:
        """Return how often each number is in an array, or the sums of what stands beside it in `weights`.

        Args:
            input: `(L,)`; integers from 0 on.
            weights: `(L,)`; f32 or f64.
            minlength: elements that the result has at least.

        Returns:
            An array up to the largest number: i64, or of the dtype of `weights`. The smallest and the largest number
            are read back, so a call waits for the device. There are no gradients.

        Raises:
            CallError: `not-an-array`, `wrong-rank`, `wrong-shape`, `wrong-dtype`, `bad-argument`, or
                `no-gradient` for weights that need one.

        Numerics:
            Weights of one number are added up in their dtype, in one order: the same bits in every run.

        Source: `torch.bincount`.
        """
        count = _size(input, weights, index(minlength))
        if weights is None:
            return COUNT(input, count)[0]
        wide = input if arrays.dtype_of(input).name in ("i32", "i64") else WIDE(input)[0]
        return ROW_SUMS(without_gradient(weights, "weights").reshape(-1, 1), wide, count, -1)[0].reshape(-1)

    def reference(self, input: Any, weights: Any = None, minlength: int = 0) -> Any:
        """Return the exact result in NumPy, sums in float64."""
        given = None if weights is None else arrays.host(weights)
        return np.bincount(to_numpy(input), given, minlength)

    def explain(self) -> Any:
        """Return what the last kernel that counts ran: backend, schedule, emulations.

        Raises:
            CallError: `never-run` before the first call.
        """
        return kernels.numbers.explain()

    def compile(self, dtype: DType = i64, *, target: str | None = None, dump: Sequence[str] = ()) -> Artifact:
        """Return the kernel that counts; needs no device.

        Args:
            dtype: of the input.
            target: as for `ts.compile`.
            dump: as for `ts.compile`.
        """
        return compiled(kernels.numbers, target, dump, {}, I=dtype, N=i32)

    @staticmethod
    def flops(shape: Sequence[int]) -> int:
        """Return the operations of a call: an addition an element."""
        return prod(shape)

    @staticmethod
    def bytes(shape: Sequence[int], dtype: DType, count: int) -> int:
        """Return the bytes of an input and of so many counts, each once."""
        return prod(shape) * dtype.bytes + count * 8


def _size(input: Any, weights: Any, least: int) -> int:
    """Return how many elements a result has.

    Raises:
        CallError: `not-an-array`, `wrong-rank`, `wrong-shape`, `wrong-dtype` or `bad-argument`.
    """
    shape, dtype = arrays.shape_of(input, "input"), arrays.dtype_of(input, "input")
    if len(shape) != 1:
        raise _wrong("wrong-rank", f"argument 'input' has {len(shape)} dimensions", "it takes 1")
    if dtype.name not in INTEGERS:
        raise _wrong("wrong-dtype", f"argument 'input' has the dtype {dtype}", f"it takes {', '.join(INTEGERS)}")
    if weights is not None:
        rows.same_shape(weights, "weights", shape)
        if arrays.dtype_of(weights).name not in ("f32", "f64"):
            found = arrays.dtype_of(weights)
            raise _wrong("wrong-dtype", f"argument 'weights' has the dtype {found}", "it takes f32 or f64")
    if least < 0:
        raise _wrong("bad-argument", f"minlength is {least}", "it is 0 or more")
    check_known(input, "the number of counts")
    if shape[0] == 0:
        return least
    if dtype.kind == "int" and int(arrays.host(reduce.min(input))) < 0:
        raise _wrong("bad-argument", "argument 'input' has numbers below 0", "only those from 0 on are counted")
    count = max(least, int(arrays.host(reduce.max(input))) + 1)
    if weights is not None and count >= 2**31:
        raise _wrong("bad-argument", f"the result has {count} elements", "sums of weights have fewer than 2**31")
    return count


def _wrong(code: str, message: str, hint: str) -> CallError:
    return CallError(message, code=code, location=caller_location(), help=hint)


bincount = Bincount()
"""How often numbers are there; see `Bincount.__call__`."""
