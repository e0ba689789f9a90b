"""Embedding: rows of a table, by their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from tessera.driver.compile import compile as compiled
from tessera.errors import CallError, caller_location
from tessera.numerics.dtypes import DType, bf16, i64
from tessera.ops import arrays, rows
from tessera.ops.lookup import kernels
from tessera.ops.lookup.steps import BACKWARD, FORWARD
from tessera.ops.operation import library_op
from tessera.ops.refusals import checked
from tessera.runtime import to_numpy
from tessera.target.artifact import Artifact


@library_op
class Embedding:
    """Embedding; `__call__` says what it takes."""

    @checked
    def __call__(self, input: Any, weight: Any, padding_idx: int | None = None, *, out: Any = None) -> Any:
        """Return the rows `weight[input]`.

        Args:
            input: numbers of rows, of any shape; i32 or i64. A number that is no row's, below 0 too, gives zeros.
            weight: `(V, N)`; f64, f32, bf16 or f16.
            padding_idx: a row that gets no gradient; from the end where negative. The result is its row all the same.
            out: array for the result.

        Returns:
            An array `(*input.shape, N)` of the dtype of `weight`. PyTorch tensors that need gradients have them.

        Raises:
            CallError: `not-an-array`, `wrong-rank`, `wrong-shape`, `wrong-dtype`, `bad-argument`, or
                `out-needs-no-gradient`.

        Source: `torch.nn.functional.embedding`.
        """
        shape = _shape(input, weight)
        padding = _padding(padding_idx, arrays.shape_of(weight, "weight")[0])
        index = rows.vector(input)
        if out is None:
            return FORWARD(index, weight, padding)[0].reshape(shape)
        rows.checked_out(out, shape, arrays.dtype_of(weight), weight)
        rows.apart(out, weight=weight)
        goal = rows.out_rows(out, 1)
        if goal is None:
            out[...] = FORWARD(index, weight, padding)[0].reshape(shape)
        else:
            FORWARD.into((goal,), index, weight, padding)
        return out

    def backward(self, grad: Any, input: Any, weight: Any, padding_idx: int | None = None) -> dict[str, Any]:
        """Return the gradient of a call by the name of its argument: `{"weight": …}`.

        Args:
            grad: gradient of the result.
            input: as in the call.
            weight: as in the call; its shape and dtype count.
            padding_idx: as in the call.

        Raises:
            CallError: as for the call.

        Numerics:
            Gradients of one row are added up in f32 (f64 for f64), in one order of the tokens, and rounded once: the
            same bits in every run. Tokens are sorted by counting, in time proportional to tokens and rows; one program
            adds up all tokens of a row.
        """
        shape, (count, width) = _shape(input, weight), arrays.shape_of(weight, "weight")
        rows.same_shape(grad, "grad", shape)
        rows.same_dtype(grad, "grad", weight, "weight")
        padding = _padding(padding_idx, count)
        flat = rows.matrix(grad, prod(shape[:-1]), width)
        return {"weight": BACKWARD.fresh(flat, rows.vector(input), count, padding)[0]}

    def reference(self, input: Any, weight: Any) -> Any:
        """Return the exact result in NumPy and float64."""
        table, index = arrays.host(weight), to_numpy(input)
        inside = (index >= 0) & (index < len(table))
        wide = np.concatenate([table, np.zeros((1, table.shape[1]))])
        return wide[np.where(inside, index, len(table))]

    def explain(self) -> Any:
        """Return what the last kernel ran: backend, schedule, emulations.

        Raises:
            CallError: `never-run` before the first call.
        """
        return kernels.gather.explain()

    def compile(
        self, width: int, dtype: DType = bf16, *, gradient: bool = False, target: str | None = None
    ) -> Artifact:
        """Return the kernel that gathers rows of a width, or that adds up their gradients; needs no device.

        Args:
            width: elements of a row.
            dtype: dtype of the table.
            gradient: whether the kernel of the gradient is wanted.
            target: as for `ts.compile`.
        """
        sizes = {"N": width}
        if gradient:
            return compiled(kernels.row_sums, target, (), sizes, T=dtype, acc=rows.accumulator(dtype))
        return compiled(kernels.gather, target, (), sizes, T=dtype, I=i64)

    @staticmethod
    def flops(shape: Sequence[int]) -> int:
        """Return the operations of a gradient of a shape: an addition an element. A call has none."""
        return prod(shape)

    @staticmethod
    def bytes(shape: Sequence[int], dtype: DType) -> int:
        """Return the bytes of a result of a shape and of the rows it is copied from, without the numbers of rows."""
        return 2 * prod(shape) * dtype.bytes


def _shape(input: Any, weight: Any) -> tuple[Any, ...]:
    """Return the shape of the result."""
    shape, table = arrays.shape_of(input, "input"), arrays.shape_of(weight, "weight")
    rows.float_dtype(weight, "weight")
    if arrays.dtype_of(input, "input").name not in ("i32", "i64"):
        raise CallError(
            f"argument 'input' has the dtype {arrays.dtype_of(input, 'input')}",
            code="wrong-dtype",
            location=caller_location(),
            help="it takes i32 or i64",
        )
    if len(table) != 2:
        raise CallError(
            f"argument 'weight' has {len(table)} dimensions",
            code="wrong-rank",
            location=caller_location(),
            help="it takes 2: rows and their elements",
        )
    return *shape, table[1]


def _padding(row: int | None, count: Any) -> int:
    """Return the row that gets no gradient, -1 for none."""
    if row is None:
        return -1
    if not -count <= row < count:
        raise CallError(
            f"padding_idx is {row} of {count} rows",
            code="bad-argument",
            location=caller_location(),
            help="it is the number of a row",
        )
    return int(row) % int(count)


embedding = Embedding()
"""Embedding; see `Embedding.__call__`."""
