"""`matmul` with NumPy's rules for batches, and `linear`."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from tessera.errors import CallError, TesseraError, caller_location
from tessera.numerics.dtypes import DType
from tessera.ops import arrays
from tessera.ops import epilogue as epi
from tessera.ops.linalg import whole
from tessera.ops.linalg.batches import general, rows_of_any
from tessera.ops.linalg.gemm import gemm
from tessera.ops.linalg.problem import check_sizes, default_out
from tessera.ops.linalg.steps import LAYER, followed
from tessera.ops.operation import with_checked_methods
from tessera.ops.refusals import checked
from tessera.ops.steps import check_not_traced, is_seen, versioned
from tessera.ops.traced import traced_among


@with_checked_methods
class Matmul:
    """Products of vectors, matrices and batches by NumPy's rules; `__call__` says what it takes."""

    @checked
    def __call__(self, a: Any, b: Any, *, out: Any = None, out_dtype: DType | None = None) -> Any:
        """Return `a @ b` with NumPy's rules: vectors lose their dimension, batches are broadcast.

        Args:
            a: `(..., M, K)` or `(K,)`.
            b: `(..., K, N)` or `(K,)`.
            out: array for the result; by default a new one beside `a`.
            out_dtype: dtype of a new result, by default as for `gemm`.

        Returns:
            The result: `out`, or an array of the library of `a`. PyTorch tensors that need gradients have them.

        Raises:
            CallError: `wrong-rank`, `wrong-shape`, or what `gemm` says.

        Numerics:
            No operand is copied to make one batch of it: what cannot be one by strides alone is computed batch by
            batch. Misaligned operands may be copied for bulk copies, as `gemm` says.
        """
        if traced_among((a, b)) is not None:
            if out is not None:
                check_not_traced(a, b, out)
            return whole.product(a, b, out_dtype)
        if getattr(a, "ndim", None) == getattr(b, "ndim", None) == 2:
            return gemm(a, b, out=out, out_dtype=out_dtype)
        if is_seen((a, b, out)):
            found = followed(a, b, None, out, out_dtype)
            if found is not None:
                return found
        try:
            found = general(a, b, out, out_dtype)
        except TesseraError as error:
            raise error.at(caller_location()) from error.__cause__
        if out is not None:
            versioned(out)
        return found

    @staticmethod
    def reference(a: Any, b: Any) -> Any:
        """Return the exact result in NumPy and float64."""
        return np.matmul(arrays.host(a), arrays.host(b))

    @staticmethod
    def flops(a: Sequence[int], b: Sequence[int]) -> int:
        """Return the operations of a product of operands of these shapes."""
        rows = 1 if len(a) == 1 else a[-2]
        columns = 1 if len(b) == 1 else b[-1]
        return 2 * prod(np.broadcast_shapes(tuple(a[:-2]), tuple(b[:-2]))) * rows * columns * a[-1]

    @staticmethod
    def bytes(a: Sequence[int], b: Sequence[int], dtype: DType, out_dtype: DType | None = None) -> int:
        """Return the bytes of operands of these shapes and of their product, each once."""
        out = (1 if len(a) == 1 else a[-2]) * (1 if len(b) == 1 else b[-1])
        out *= prod(np.broadcast_shapes(tuple(a[:-2]), tuple(b[:-2])))
        return (prod(a) + prod(b)) * dtype.bytes + out * (out_dtype or default_out(dtype)).bytes


def _weights(w: Any) -> Any:
    """Return the weights of a layer.

    Raises:
        CallError: `wrong-rank`.
    """
    if len(w.shape) != 2:
        raise CallError(
            f"argument 'w' has the shape {tuple(w.shape)}, which is not (N, K)",
            code="wrong-rank",
            help="pass the weights as a matrix of N rows",
        )
    return w


@with_checked_methods
class Linear:
    """A linear layer; `__call__` says what it takes."""

    @checked
    def __call__(
        self,
        x: Any,
        w: Any,
        bias: Any = None,
        *,
        epilogue: epi.Epilogue | None = None,
        out: Any = None,
        out_dtype: DType | None = None,
        compute: DType | None = None,
        stream: Any = None,
    ) -> Any:
        """Return `epilogue(x·wᵀ + bias)`: a linear layer whose weights are stored `(outputs, inputs)`.

        Args:
            x: `(..., K)`; copied where its rows are not one matrix by strides.
            w: `(N, K)`.
            bias: `(N,)`, or None.
            epilogue: `op.epilogue.chain([...])` after the bias; its tensors are over the rows of all of `x`, `(M, N)`.
            out: array for the result.
            out_dtype: dtype of a new result, by default that of `x`.
            compute: as for `gemm`.
            stream: CUDA stream to launch on.

        Returns:
            `(..., N)`: `out`, or an array of the library of `x`. PyTorch tensors that need gradients have them.

        Raises:
            CallError: as for `gemm`, or `no-gradient` for an epilogue whose operands need gradients.
        """
        options = (*LAYER[:2], out_dtype, None, compute, *LAYER[5:])
        if traced_among((x, w, bias)) is not None:
            return whole.gemm(x, w, None, out, 1.0, 0.0, bias, {"epilogue": epilogue, "stream": stream}, options)
        beside = () if epilogue is None else epilogue.values
        if is_seen((x, w, bias, out, *beside)):
            is_plain = epilogue is compute is stream is None
            found = followed(x, _weights(w).mT, bias, out, out_dtype, is_plain, beside)
            if found is not None:
                return found
        if len(getattr(x, "shape", ())) == 2:
            found = gemm.run(x, w, None, out, 1.0, 0.0, bias, None, None, epilogue, options, stream)
        else:
            found = rows_of_any(x, w, bias, epilogue, out, options, stream)
        if out is not None:
            versioned(out)
        return found

    @staticmethod
    def reference(x: Any, w: Any, bias: Any = None, epilogue: epi.Epilogue | None = None) -> Any:
        """Return the exact result in NumPy and float64."""
        total = arrays.host(x) @ arrays.host(w).T
        if bias is not None:
            total = total + arrays.host(bias)
        if epilogue is None:
            return total
        return epilogue.reference(total.reshape(-1, total.shape[-1])).reshape(total.shape)

    @staticmethod
    def flops(rows: int, inputs: int, outputs: int, epilogue: epi.Epilogue | None = None) -> int:
        """Return the operations of a layer with a bias."""
        rows, inputs, outputs = check_sizes(rows=rows, inputs=inputs, outputs=outputs)
        return (2 * inputs + 1) * rows * outputs + (0 if epilogue is None else epilogue.flops(rows * outputs))

    @staticmethod
    def bytes(rows: int, inputs: int, outputs: int, dtype: DType, out_dtype: DType | None = None) -> int:
        """Return the bytes of operands, bias and result, each once."""
        rows, inputs, outputs = check_sizes(rows=rows, inputs=inputs, outputs=outputs)
        out = out_dtype or default_out(dtype)
        return (rows * inputs + inputs * outputs + outputs) * dtype.bytes + rows * outputs * out.bytes


matmul = Matmul()
"""Products with NumPy's broadcasting; see `Matmul.__call__`."""

linear = Linear()
"""A linear layer; see `Linear.__call__`."""
