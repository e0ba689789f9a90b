"""Cross entropy of the logits of a linear layer, which are never all there at once."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tessera.driver.compile import compile as compiled
from tessera.errors import CallError, caller_location
from tessera.numerics.dtypes import DType, bf16, i64
from tessera.ops import arrays, rows
from tessera.ops.linalg import gemm
from tessera.ops.loss import class_kernels as kernels
from tessera.ops.loss import reductions
from tessera.ops.loss.cross_entropy import check_options, check_target, cross_entropy, exact_rows
from tessera.ops.loss.linear_steps import BACKWARD, FORWARD, chunk_of, keep
from tessera.ops.loss.reductions import Reduction
from tessera.ops.operation import library_op
from tessera.ops.refusals import checked
from tessera.ops.traced import Traced
from tessera.target.artifact import Artifact


@library_op
class LinearCrossEntropy:
    """Cross entropy of `x·weightᵀ`; `__call__` says what it takes."""

    @checked
    def __call__(
        self,
        x: Any,
        weight: Any,
        target: Any,
        *,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        chunk: int | None = None,
        out: Any = None,
    ) -> Any:
        """Return `cross_entropy(x·weightᵀ, target)`, a chunk of classes after the other.

        Args:
            x: `(…, H)`, what a linear layer takes; f64, f32, bf16 or f16.
            weight: `(C, H)`, that layer's weight, of the dtype of `x`.
            target: classes, i64 or i32, of the shape of `x` without `H`.
            ignore_index: target whose rows have no loss and no gradient.
            reduction: `mean`, by the number of targets that are not ignored, `sum` or `none`.
            label_smoothing: as for `cross_entropy`.
            z_loss: as for `cross_entropy`.
            chunk: classes whose logits are in memory at once; by default as many as make them as large as `x`, and at
                least 1024.
            out: array for the result.

        Returns:
            One element of shape `()`, or an array as `target` of the dtype of `x`. PyTorch tensors that need gradients
            have them: `backward()` computes logits once more, so that nothing of their size is kept.

        Raises:
            CallError: `not-an-array`, `wrong-rank`, `wrong-shape`, `wrong-dtype`, `bad-argument`, or
                `out-needs-no-gradient`.

        Numerics:
            Logits and their gradients are rounded to the dtype of `x`; the gradient of `x` is added up over chunks in
            f32 (f64). Targets that are no class give NaN, as for `cross_entropy`.

        Source: Wijmans et al., Cut Your Losses in Large-Vocabulary Language Models, 2024; Milakov and Gimelshein,
        Online normalizer calculation for softmax, 2018.
        """
        shape, call = self._arguments(x, weight, target, ignore_index, reduction, label_smoothing, z_loss, chunk)
        shape = shape if reduction == "none" else ()
        if out is None:
            return FORWARD(*call)[0].reshape(shape)
        rows.checked_out(out, shape, arrays.dtype_of(x), x, weight)
        results = FORWARD.results(*call)
        FORWARD.into(results, *call)
        return reductions.given_out(out, results[0].reshape(shape))

    def backward(
        self,
        grad: Any,
        x: Any,
        weight: Any,
        target: Any,
        *,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        chunk: int | None = None,
    ) -> dict[str, Any]:
        """Return the gradients of a call: `{"x": …, "weight": …}`.

        Args:
            grad: gradient of the result, of its shape and of the dtype of `x`.
            x: as in the call, like all that follow.
            weight: as in the call.
            target: as in the call.
            ignore_index: as in the call.
            reduction: as in the call.
            label_smoothing: as in the call.
            z_loss: as in the call.
            chunk: as in the call.

        Raises:
            CallError: as for the call.
        """
        shape, call = self._arguments(x, weight, target, ignore_index, reduction, label_smoothing, z_loss, chunk)
        rows.same_shape(grad, "grad", shape if reduction == "none" else ())
        reductions.same_dtype(grad, "grad", arrays.dtype_of(x))
        kept = keep(call, FORWARD.fresh(*call))
        of_x, of_weight = BACKWARD.fresh(rows.vector(grad), *kept, [True, True])
        return {"x": of_x.reshape(arrays.shape_of(x, "x")), "weight": of_weight}

    def reference(
        self,
        x: Any,
        weight: Any,
        target: Any,
        *,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
    ) -> Any:
        """Return the exact result in NumPy and float64."""
        shape, call = self._arguments(x, weight, target, ignore_index, reduction, label_smoothing, z_loss, None)
        logits = arrays.host(call[0]) @ arrays.host(weight).T
        found = exact_rows(logits, arrays.host(call[2]), None, ignore_index, call[4], call[5], reduction)
        return found.reshape(shape) if reduction == "none" else found

    def _arguments(
        self,
        x: Any,
        weight: Any,
        target: Any,
        ignore_index: int,
        reduction: str,
        label_smoothing: float,
        z_loss: float,
        chunk: int | None,
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Return the shape of rows and what the step is called with."""
        reductions.check_reduction(reduction)
        smoothing, factor = check_options(label_smoothing, z_loss)
        if chunk is not None and not chunk > 0:
            raise CallError(
                f"chunk is {chunk}",
                code="bad-argument",
                location=caller_location(),
                help="a number of classes, or None",
            )
        dtype, shape = rows.float_dtype(x, "x"), tuple(arrays.shape_of(x, "x"))
        sizes = tuple(arrays.shape_of(weight, "weight"))
        if len(shape) < 1 or len(sizes) != 2:
            wrong = ("x", shape) if len(shape) < 1 else ("weight", sizes)
            raise CallError(
                f"argument {wrong[0]!r} has the shape {wrong[1]}",
                code="wrong-rank",
                location=caller_location(),
                help="x has at least one dimension, weight two",
            )
        if rows.float_dtype(weight, "weight").name != dtype.name:
            raise CallError(
                f"x has the dtype {dtype}, weight {arrays.dtype_of(weight)}",
                code="wrong-dtype",
                location=caller_location(),
                help="convert one of them",
            )
        rows.same_shape(weight, "weight", (sizes[0], shape[-1]))
        for name, one in (("x", x), ("weight", weight)):
            if not (arrays.is_torch(one) or isinstance(one, np.ndarray | Traced)):
                raise CallError(
                    f"argument {name!r} cannot be taken in parts",
                    code="not-an-array",
                    location=caller_location(),
                    help="it takes NumPy arrays and PyTorch tensors",
                )
        if sizes[0] == 0:
            raise CallError(
                "argument 'weight' has no classes",
                code="wrong-shape",
                location=caller_location(),
                help="give it at least one row",
            )
        outer = shape[:-1]
        check_target(target, outer)
        given = rows.matrix(x, prod(outer), shape[-1]), weight, rows.vector(target)
        return outer, (*given, int(ignore_index), smoothing, factor, reduction, int(chunk or 0))

    def explain(self) -> Any:
        """Return what the last kernel that looked at logits ran; `ops.linalg.gemm.explain()` says it of products.

        Raises:
            CallError: `never-run` before the first call.
        """
        return kernels.begun.explain()

    def compile(
        self,
        count: int,
        features: int,
        classes: int,
        dtype: DType = bf16,
        *,
        chunk: int | None = None,
        target: str | None = None,
    ) -> dict[str, Artifact]:
        """Return the kernels of a chunk by what they compute; needs no device.

        Args:
            count: rows of `x`.
            features: columns of `x`.
            classes: rows of the weight.
            dtype: dtype of both.
            chunk: as in the call.
            target: as for `ts.compile`.
        """
        size, acc = chunk_of(features, classes, chunk or 0), rows.accumulator(dtype)
        options: dict[str, Any] = {"T": dtype, "I": i64, "S": acc, "smooths": False, "acc": acc}
        options |= {"is_first": False, "lowest": kernels.LOWEST[acc.name]}
        return {
            "logits": gemm.compile(count, size, features, dtype, trans_b=True, target=target),
            "losses": compiled(kernels.begun, target, (), {"V": size}, **options),
            "gradients": cross_entropy.compile(size, dtype, gradient=True, target=target),
            "x": gemm.compile(count, features, size, dtype, out_dtype=acc, target=target),
            "weight": gemm.compile(size, features, count, dtype, trans_a=True, target=target),
        }

    @staticmethod
    def flops(count: int, features: int, classes: int, gradient: bool = False) -> int:
        """Return the operations of a call's products; there are four with gradients."""
        return 2 * count * features * classes * (4 if gradient else 1)

    @staticmethod
    def bytes(count: int, features: int, classes: int, dtype: DType, gradient: bool = False) -> int:
        """Return the bytes of `x` and weight, each once, and with them those of their gradients."""
        return (count + classes) * features * dtype.bytes * (2 if gradient else 1)


linear_cross_entropy = LinearCrossEntropy()
"""Cross entropy of the logits of a linear layer; see `LinearCrossEntropy.__call__`."""
