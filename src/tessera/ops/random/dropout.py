"""Dropout: elements are left out at random, and the others grow to keep the mean."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tessera.driver.compile import compile as compiled
from tessera.errors import CallError, caller_location
from tessera.numerics.dtypes import DType, bf16
from tessera.ops import arrays, rows
from tessera.ops.epilogue import reference as exact
from tessera.ops.operation import library_op
from tessera.ops.random.dropout_step import BACKWARD, FORWARD, drop
from tessera.ops.refusals import checked, refused
from tessera.ops.steps import seed_of
from tessera.ops.traced import Traced
from tessera.target.artifact import Artifact


@library_op
class Dropout:
    """Dropout; `__call__` says what it takes."""

    @checked
    def __call__(
        self, input: Any, p: float = 0.5, training: bool = True, inplace: bool = False, *, seed: int, out: Any = None
    ) -> Any:
        """Return `input / (1 - p)` with zeros in place of elements that are left out, each with probability `p`.

        Args:
            input: of any shape; f64, f32, bf16 or f16.
            p: probability, from 0 to 1.
            training: whether anything is left out; otherwise the result is the input, copied only for `out`.
            inplace: whether the result takes the place of `input`.
            seed: of the random numbers; an element's fate depends on it and on the element's number alone.
            out: array for the result; may be `input`.

        Returns:
            An array as `input`. PyTorch tensors that need gradients have them; no mask is kept.

        Raises:
            CallError: `not-an-array`, `wrong-shape`, `wrong-dtype`, `bad-argument`, or `out-needs-no-gradient`.

        Numerics:
            `p` and `1 / (1 - p)` are rounded to f32, for f64 too; the same elements are left out on every machine.

        Source: Srivastava et al., Dropout, 2014; Salmon et al., Parallel random numbers: as easy as 1, 2, 3, 2011.
        """
        shape, x = _matrix(input, p)
        if inplace:
            out = _one_place(input, out)
        if out is not None:
            rows.checked_out(out, shape, arrays.dtype_of(input), input)
        drops = training and p > 0
        if not drops and out is None:
            return input
        given = (x, float(p) if drops else 0.0, seed_of(seed))
        goal = None if out is None else _goal(out, x)
        if goal is not None:
            FORWARD.into((goal,), *given)
            return out
        made = FORWARD(*given)[0].reshape(shape)
        if out is None:
            return made
        out[...] = made
        return out

    def backward(self, grad: Any, p: float = 0.5, training: bool = True, *, seed: int) -> dict[str, Any]:
        """Return the gradient of a call by the name of its argument; what was left out is found again by the seed.

        Args:
            grad: gradient of the result.
            p: as in the call.
            training: as in the call.
            seed: as in the call.

        Raises:
            CallError: as for the call.
        """
        shape, x = _matrix(grad, p)
        if not training or p == 0:
            return {"input": grad}
        return {"input": BACKWARD.fresh(x, float(p), seed_of(seed))[0].reshape(shape)}

    def reference(self, input: Any, p: float = 0.5, training: bool = True, *, seed: int) -> Any:
        """Return the exact result in NumPy and float64, of the same random numbers."""
        x = arrays.host(input)
        if not training:
            return x
        return exact.dropout(x, p, seed_of(seed), fours=True) if p < 1 else 0 * x

    def explain(self) -> Any:
        """Return what the last kernel ran: backend, schedule, emulations.

        Raises:
            CallError: `never-run` before the first call.
        """
        return drop.explain()

    def compile(self, width: int, dtype: DType = bf16, *, target: str | None = None) -> Artifact:
        """Return the kernel for rows of a width; needs no device.

        Args:
            width: elements of a row.
            dtype: dtype of the rows.
            target: as for `ts.compile`.
        """
        return compiled(drop, target, (), {"N": width}, T=dtype, acc=rows.accumulator(dtype))

    @staticmethod
    def flops(shape: Sequence[int]) -> int:
        """Return the operations of a call but for the random numbers: a multiplication an element."""
        return prod(shape)

    @staticmethod
    def bytes(shape: Sequence[int], dtype: DType) -> int:
        """Return the bytes of an array and of its result."""
        return 2 * prod(shape) * dtype.bytes


def _matrix(array: Any, p: float) -> tuple[tuple[Any, ...], Any]:
    """Return the shape of an array, and it as rows."""
    shape = arrays.shape_of(array, "input")
    rows.float_dtype(array, "input")
    if not 0 <= p <= 1:
        raise CallError(f"p is {p}", code="bad-argument", location=caller_location(), help="it is from 0 to 1")
    if _is_one(array) or not shape or shape[-1] % 4:
        return shape, array.reshape(1, -1)
    return shape, rows.matrix(array, prod(shape[:-1]), shape[-1])


def _goal(out: Any, x: Any) -> Any:
    """Return an array for the result in the shape that it is computed in, None where no strides give that."""
    if x.shape[0] == 1:
        return out.reshape(1, -1) if _is_one(out) else None
    return rows.out_rows(out, 1)


def _is_one(array: Any) -> bool:
    """Return whether an array's elements follow one another, of a tensor that PyTorch traces too."""
    if arrays.is_torch(array):
        return bool(array.is_contiguous())
    if isinstance(array, Traced):
        return True  # where it is not, it is copied
    found = arrays.view(array, "an array")
    return rows.is_one(found.shape, found.strides)


def _one_place(input: Any, out: Any) -> Any:
    """Return where a result in place of its input goes.

    Raises:
        CallError: `bad-argument` where another array is given, too.
    """
    if out is not None and out is not input:
        raise refused("inplace and out do not go together", "bad-argument", "give one of them")
    return input


dropout = Dropout()
"""Dropout; see `Dropout.__call__`."""
