"""What reductions share: dimensions, results in given arrays, gradients, what is compiled."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar

from tessera.driver.compile import compile as compiled
from tessera.driver.compile import target_record
from tessera.errors import CallError, caller_location
from tessera.numerics.dtypes import DType, f32, i64
from tessera.ops import arrays, axes, rows
from tessera.ops.reduce import kernels
from tessera.ops.reduce.steps import (
    BACKWARD,
    LAST,
    REDUCE,
    SUMS,
    accumulator,
    last_of,
    places_of,
    sum_blocks,
    sums_kept,
)
from tessera.target.artifact import Artifact

Dims = int | Sequence[int] | None
"""Dimensions that a reduction goes along; None for all."""
INTEGERS = ("i8", "u8", "i16", "i32", "i64")


def number_dtype(array: Any, also: Sequence[str] = ()) -> DType:
    """Return the dtype of an input of numbers.

    Raises:
        CallError: `not-an-array` or `wrong-dtype`.
    """
    found = arrays.dtype_of(array, "input")
    if found.name not in (*rows.FLOATS, *INTEGERS, *also):
        raise CallError(
            f"argument 'input' has the dtype {found}",
            code="wrong-dtype",
            location=caller_location(),
            help=f"it takes {', '.join((*rows.FLOATS, *INTEGERS, *also))}",
        )
    return found


def checked_gradient(grad: Any, shape: Sequence[Any]) -> None:
    """Check the gradient of a result.

    Raises:
        CallError: `not-an-array`, `wrong-shape` or `wrong-dtype`.
    """
    rows.same_shape(grad, "grad", shape)
    rows.float_dtype(grad, "grad")


def compile_kernel(kernel: Any, shape: Sequence[int], dim: Dims, target: Any, dump: Any, given: dict[str, Any]) -> Any:
    """Compile the first of two kernels, for rows or for a dimension in the middle, as contiguous arrays take it."""
    found = axes.extents(shape, axes.chosen(dim, len(shape)))
    sizes = dict(zip("ANB", found, strict=True)) if found[2] != 1 else {"A": found[0], "N": found[1]}
    block = sum_blocks(tuple(sizes.values()), bool(target_record(target).simt))
    return compiled(kernel[len(sizes) - 2], target, dump, sizes, **block, **given)


class Reduction:
    """A reduction along dimensions."""

    kind: ClassVar[str]
    """What its step calls it."""

    def explain(self) -> Any:
        """Return what the last forward kernel ran: backend, schedule, emulations.

        Raises:
            CallError: `never-run` before the first call.
        """
        return LAST.get(self.kind, kernels.row_sums).explain()

    @staticmethod
    def flops(shape: Sequence[int]) -> int:
        """Return the operations of a call: one for each element."""
        return prod(shape)

    @staticmethod
    def bytes(shape: Sequence[int], dtype: DType, dim: Dims = None) -> int:
        """Return the bytes of input and result, each once."""
        return (prod(shape) + prod(axes.left(shape, axes.chosen(dim, len(shape)), False))) * dtype.bytes


class SumReduction(Reduction):
    """A reduction that adds up."""

    def run(self, input: Any, dim: Dims, keepdim: bool, dtype: DType, out: Any, kind: str, less: float = 0) -> Any:
        """Compute a call; `less` is what a divisor is smaller than the elements' number, or the exponent of a norm."""
        shape = arrays.shape_of(input, "input")
        dims = axes.chosen(dim, len(shape))
        x, kept = axes.folded(input, dims), axes.left(shape, dims, keepdim)
        call = x, kind, float(less), dtype.name
        if out is None:
            return REDUCE(*call)[0].reshape(kept)
        rows.checked_out(out, kept, dtype, input)
        goal = axes.place_left(out, shape, dims, (x.shape[0], *x.shape[2:]))
        if goal is None:
            out[...] = REDUCE(*call)[0].reshape(kept)
        else:
            REDUCE.into((goal, *REDUCE.results(*call)[1:]), *call)
        return out

    def gradients(self, grad: Any, input: Any, dim: Dims, keepdim: bool, kind: str, less: float = 0) -> dict[str, Any]:
        """Return gradients by the arguments' names."""
        shape, dtype = arrays.shape_of(input, "input"), rows.float_dtype(input, "input")
        dims = axes.chosen(dim, len(shape))
        checked_gradient(grad, axes.left(shape, dims, keepdim))
        x = axes.folded(input, dims)
        call = x, kind, float(less), dtype.name
        results = REDUCE.fresh(*call) if kind in ("norm2", "norm of power", "var") else (None, None)
        flat = grad.reshape((x.shape[0], *x.shape[2:]))
        (found,) = BACKWARD.fresh(flat, *sums_kept(call, results))
        return {"input": axes.unfolded(found, shape, dims)}

    def compile(
        self,
        shape: Sequence[int],
        dim: Dims = None,
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
        result = dtype if dtype.is_float else i64
        acc = accumulator(dtype, result)
        of, finish = SUMS[self.kind]
        given: dict[str, Any] = {"T": dtype, "Y": result, "kind": of, "finish": finish, "acc": acc}
        given |= {"S": acc} if of == "apart" else {"middle": None}
        return compile_kernel((kernels.row_sums, kernels.column_sums), shape, dim, target, dump, given)


class ExtremeReduction(Reduction):
    """A reduction that picks an element."""

    def compile(
        self,
        shape: Sequence[int],
        dim: int | None = None,
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
        given: dict[str, Any] = {"T": dtype, "kind": self.kind, "last": last_of(dtype, self.kind)}
        along, after = axes.extents(shape, axes.chosen(dim, len(shape)))[1:]
        given |= {"acc": accumulator(dtype, dtype), "at": places_of(along)}
        if after != 1:
            given["known"] = None
        return compile_kernel((kernels.row_extremes, kernels.column_extremes), shape, dim, target, dump, given)
