"""The Hadamard transform of rows."""

from __future__ import annotations

from collections.abc import Sequence
from math import log2, prod
from typing import Any, cast

import numpy as np

from tessera.driver.compile import compile as compiled
from tessera.numerics.dtypes import DType, f32
from tessera.ops import arrays, rows
from tessera.ops.operation import library_op
from tessera.ops.refusals import checked, refused
from tessera.ops.steps import needs_gradient
from tessera.ops.transforms.kernels import transform
from tessera.ops.transforms.steps import BACKWARD, FORWARD, together
from tessera.target.artifact import Artifact

WIDEST = 16384
"""Elements of the longest rows."""


@library_op
class Hadamard:
    """The Hadamard transform; `__call__` says what it takes."""

    @checked
    def __call__(self, x: Any, *, signs: Any = None, scale: float | None = None, out: Any = None) -> Any:
        """Return `scale * (x * signs) · H` of each row, where `H` is the Hadamard matrix in Sylvester's order.

        Args:
            x: `(…, N)`, f64, f32, bf16 or f16; `N` is a power of two, 16384 at most.
            signs: `(N,)`, floating point numbers that elements are multiplied by before, without a gradient; random
                signs spread outliers whatever direction they have.
            scale: by default `N ** -0.5`, with which the transform keeps lengths and is its own inverse.
            out: array for the result.

        Returns:
            An array of the shape and dtype of `x`. PyTorch tensors that need gradients have them.

        Raises:
            CallError: `not-an-array`, `wrong-rank`, `wrong-shape`, `wrong-dtype`, `bad-argument`, `no-gradient` for
                signs that need one, or `out-needs-no-gradient`.

        Numerics:
            Sums of pairs in f32 (f64 for f64), `log2(N)` after each other, rounded once at the end.

        Source: Ashkboos et al., QuaRot: outlier-free 4-bit inference in rotated LLMs, 2024; the `hadamard_transform` of
        Dao-AILab/fast-hadamard-transform, whose default scale is 1.
        """
        matrix, factor = _arguments(x, "x", signs, scale)
        shape = arrays.shape_of(x, "x")
        if out is None:
            return FORWARD(matrix, signs, factor)[0].reshape(shape)
        rows.checked_out(out, shape, arrays.dtype_of(x), x)
        if signs is not None:
            rows.apart(out, signs=signs)
        goal = rows.out_rows(out, 1)
        if goal is None:
            out[...] = FORWARD(matrix, signs, factor)[0].reshape(shape)
        else:
            FORWARD.into((goal,), matrix, signs, factor)
        return out

    def backward(self, grad: Any, *, signs: Any = None, scale: float | None = None) -> dict[str, Any]:
        """Return the gradient of a call by the name of its argument, `{"x": …}`: `scale * (grad · H) * signs`.

        Args:
            grad: gradient of the result.
            signs: as in the call.
            scale: as in the call.

        Raises:
            CallError: as for the call.
        """
        matrix, factor = _arguments(grad, "grad", signs, scale)
        return {"x": BACKWARD.fresh(matrix, signs, factor)[0].reshape(arrays.shape_of(grad, "grad"))}

    def reference(self, x: Any, *, signs: Any = None, scale: float | None = None) -> Any:
        """Return the exact result in NumPy and float64, by the matrix."""
        given = arrays.host(x)
        size = given.shape[-1]
        kron, matrix = cast("Any", np).kron, cast("Any", np.ones((1, 1)))
        while len(matrix) < size:
            matrix = kron(matrix, [[1, 1], [1, -1]])
        whole = given if signs is None else given * arrays.host(signs)
        return whole @ matrix * (size**-0.5 if scale is None else scale)

    def explain(self) -> Any:
        """Return what the last kernel ran: backend, schedule, emulations.

        Raises:
            CallError: `never-run` before the first call.
        """
        return transform.explain()

    def compile(
        self,
        size: int,
        dtype: DType = f32,
        *,
        signs: DType | None = None,
        target: str | None = None,
        dump: Sequence[str] = (),
    ) -> Artifact:
        """Return the kernel for a number of elements of a row; needs no device.

        Args:
            size: elements of a row.
            dtype: of the rows.
            signs: dtype of signs, None for none.
            target: as for `ts.compile`.
            dump: as for `ts.compile`.
        """
        given: dict[str, Any] = {"signs": None} if signs is None else {"S": signs}
        given |= {"T": dtype, "after": False, "acc": rows.accumulator(dtype), "R": together(size)}
        return compiled(transform, target, dump, {"M": 4096, "N": size}, **given)

    @staticmethod
    def flops(shape: Sequence[int]) -> int:
        """Return the additions of a call with an array of a shape."""
        return prod(shape) * int(log2(shape[-1]))

    @staticmethod
    def bytes(shape: Sequence[int], dtype: DType) -> int:
        """Return the bytes of input and result, each once."""
        return 2 * prod(shape) * dtype.bytes


def _arguments(x: Any, name: str, signs: Any, scale: float | None) -> tuple[Any, float]:
    """Return checked rows, and the scale.

    Raises:
        CallError: `not-an-array`, `wrong-rank`, `wrong-shape`, `wrong-dtype`, `bad-argument` or `no-gradient`.
    """
    rows.float_dtype(x, name)
    shape = arrays.shape_of(x, name)
    if not shape:
        raise refused(f"{name} has no dimension", "wrong-rank", "it has one at least")
    size = int(shape[-1])
    if size < 1 or size & (size - 1) or size > WIDEST:
        raise refused(
            f"{name} has the shape {tuple(shape)}",
            "wrong-shape",
            f"rows have a power of two of elements, at most {WIDEST}",
        )
    if signs is not None:
        rows.float_dtype(signs, "signs")
        rows.same_shape(signs, "signs", (size,))
        if needs_gradient((signs,)):
            raise refused("signs have no gradients", "no-gradient", "detach them")
    return rows.matrix(x, prod(shape[:-1]), size), size**-0.5 if scale is None else float(scale)


hadamard = Hadamard()
"""The Hadamard transform; see `Hadamard.__call__`."""
