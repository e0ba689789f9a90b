"""What losses of vectors share, and both of them: `cosine_embedding` and `triplet_margin`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, prod
from typing import Any, ClassVar

import numpy as np

from tessera.driver.compile import compile as compiled
from tessera.errors import CallError, caller_location
from tessera.numerics.dtypes import DType, bf16, i64
from tessera.ops import arrays, rows
from tessera.ops.loss import pair_kernels as kernels
from tessera.ops.loss import reductions, triplet_kernels
from tessera.ops.loss.pair_steps import COSINE, COSINE_BACKWARD, TRIPLET, TRIPLET_BACKWARD, blocks, keep, power_of
from tessera.ops.loss.reductions import Reduction, reduced_exactly
from tessera.ops.operation import library_op
from tessera.ops.refusals import checked
from tessera.ops.steps import Step
from tessera.target.artifact import Artifact

_SIGNS = ("i64", "i32", *rows.FLOATS)
_MANY = 1 << 16
"""Rows that a kernel is compiled for where a device is absent."""


class VectorLoss:
    """A loss of rows of several arrays of one shape."""

    step: ClassVar[Step]
    backward_step: ClassVar[Step]

    def run(self, vectors: Mapping[str, Any], options: Sequence[Any], reduction: str, out: Any) -> Any:
        """Compute a call; `options` are what the step takes between the vectors and the reduction."""
        shape, given = self._arguments(vectors, reduction)
        call = (*given, *options, reduction != "none", reductions.divisor_of(reduction, (prod(shape),)))
        shape = shape if reduction == "none" else ()
        if out is None:
            return self.step(*call)[0].reshape(shape)
        rows.checked_out(out, shape, arrays.dtype_of(given[0]), *given)
        results = self.step.results(*call)
        self.step.into(results, *call)
        return reductions.given_out(out, results[0].reshape(shape))

    def gradients(
        self, grad: Any, vectors: Mapping[str, Any], options: Sequence[Any], reduction: str
    ) -> dict[str, Any]:
        """Return gradients by the arguments' names."""
        outer, given = self._arguments(vectors, reduction)
        first = given[0]
        rows.same_shape(grad, "grad", outer if reduction == "none" else ())
        reductions.same_dtype(grad, "grad", arrays.dtype_of(first))
        call = (*given, *options, reduction != "none", reductions.divisor_of(reduction, (prod(outer),)))
        kept = keep(call, self.step.fresh(*call))
        found = self.backward_step.fresh(rows.vector(grad), *kept, [True] * len(given))
        shape = (*outer, first.shape[1])
        return {name: one.reshape(shape) for name, one in zip(vectors, found, strict=True)}

    def _arguments(self, vectors: Mapping[str, Any], reduction: str) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Return the shape of rows, and the vectors as rows."""
        reductions.check_reduction(reduction)
        (name, first), *others = vectors.items()
        shape, dtype = tuple(arrays.shape_of(first, name)), rows.float_dtype(first, name)
        if not shape:
            raise CallError(
                f"argument {name!r} has no dimensions",
                code="wrong-rank",
                location=caller_location(),
                help="the last dimension has the elements of a vector",
            )
        for other, array in others:
            rows.same_shape(array, other, shape)
            if rows.float_dtype(array, other).name != dtype.name:
                raise CallError(
                    f"{name} has the dtype {dtype}, {other} {arrays.dtype_of(array)}",
                    code="wrong-dtype",
                    location=caller_location(),
                    help="convert one of them",
                )
        outer = shape[:-1]
        return outer, tuple(rows.matrix(one, prod(outer), shape[-1]) for one in vectors.values())


@library_op
class CosineEmbedding(VectorLoss):
    """The cosine embedding loss; `__call__` says what it takes."""

    step, backward_step = COSINE, COSINE_BACKWARD

    @checked
    def __call__(
        self,
        input1: Any,
        input2: Any,
        target: Any,
        margin: float = 0.0,
        *,
        reduction: Reduction = "mean",
        out: Any = None,
    ) -> Any:
        """Return `1 - cos` of each pair of rows whose target is 1, `max(cos - margin, 0)` where it is -1, reduced.

        Args:
            input1: `(…, D)`, f64, f32, bf16 or f16.
            input2: of the shape and dtype of `input1`.
            target: 1 or -1 for each row, of any dtype of floats, i64 or i32; other targets give 0.
            margin: cosine up to which pairs of target -1 have no loss.
            reduction: `mean`, `sum` or `none`.
            out: array for the result.

        Returns:
            One element of shape `()`, or an array as `target` of the dtype of `input1`. PyTorch tensors that need
            gradients have them.

        Raises:
            CallError: `not-an-array`, `wrong-rank`, `wrong-shape`, `wrong-dtype`, `bad-argument`, or
                `out-needs-no-gradient`.

        Numerics:
            Computed and added up in f32 (f64 for f64) in one order, rounded once; 1e-12 is added to squares of lengths.

        Source: `torch.nn.functional.cosine_embedding_loss`.
        """
        signs = self._signs(input1, target)
        return self.run({"input1": input1, "input2": input2}, (signs, float(margin)), reduction, out)

    def backward(
        self,
        grad: Any,
        input1: Any,
        input2: Any,
        target: Any,
        margin: float = 0.0,
        *,
        reduction: Reduction = "mean",
    ) -> dict[str, Any]:
        """Return the gradients of a call: `{"input1": …, "input2": …}`.

        Args:
            grad: gradient of the result, of its shape and of the dtype of `input1`.
            input1: as in the call, like all that follow.
            input2: as in the call.
            target: as in the call.
            margin: as in the call.
            reduction: as in the call.

        Raises:
            CallError: as for the call.
        """
        signs = self._signs(input1, target)
        return self.gradients(grad, {"input1": input1, "input2": input2}, (signs, float(margin)), reduction)

    def reference(
        self, input1: Any, input2: Any, target: Any, margin: float = 0.0, *, reduction: Reduction = "mean"
    ) -> Any:
        """Return the exact result in NumPy and float64."""
        x, y, signs = map(arrays.host, (input1, input2, target))
        lengths = np.sqrt(((x * x).sum(-1) + kernels.COSINE_EPS) * ((y * y).sum(-1) + kernels.COSINE_EPS))
        cosine = (x * y).sum(-1) / lengths
        losses = np.where(signs == 1, 1 - cosine, np.where(signs == -1, np.maximum(cosine - margin, 0), 0))
        return reduced_exactly(losses, reduction)

    def _signs(self, input1: Any, target: Any) -> Any:
        """Return targets as a vector."""
        shape, dtype = tuple(arrays.shape_of(input1, "input1")), arrays.dtype_of(target, "target")
        if dtype.name not in _SIGNS:
            raise CallError(
                f"argument 'target' has the dtype {dtype}",
                code="wrong-dtype",
                location=caller_location(),
                help=f"it takes {', '.join(_SIGNS)}",
            )
        rows.same_shape(target, "target", shape[:-1])
        return rows.vector(target)

    def explain(self) -> Any:
        """Return what the last forward kernel ran: backend, schedule, emulations.

        Raises:
            CallError: `never-run` before the first call.
        """
        return kernels.cosines.explain()

    def compile(
        self, width: int, dtype: DType = bf16, *, target: str | None = None, dump: Sequence[str] = ()
    ) -> Artifact:
        """Return the kernel of rows' losses for i64 targets; needs no device.

        Args:
            width: elements of a row.
            dtype: dtype of the rows.
            target: as for `ts.compile`.
            dump: as for `ts.compile`.
        """
        acc = rows.accumulator(dtype)
        given: dict[str, Any] = {"T": dtype, "Y": i64, "L": acc, "S": acc, "acc": acc, **blocks(_MANY, width, 2)}
        return compiled(kernels.cosines, target, dump, {"D": width}, **given)

    @staticmethod
    def flops(shape: Sequence[int]) -> int:
        """Return the operations of a call: three sums of products."""
        return 6 * prod(shape)

    @staticmethod
    def bytes(shape: Sequence[int], dtype: DType) -> int:
        """Return the bytes of both inputs, each once."""
        return 2 * prod(shape) * dtype.bytes


@library_op
class TripletMargin(VectorLoss):
    """The triplet margin loss; `__call__` says what it takes."""

    step, backward_step = TRIPLET, TRIPLET_BACKWARD

    @checked
    def __call__(
        self,
        anchor: Any,
        positive: Any,
        negative: Any,
        margin: float = 1.0,
        p: float = 2.0,
        eps: float = 1e-6,
        swap: bool = False,
        *,
        reduction: Reduction = "mean",
        out: Any = None,
    ) -> Any:
        """Return `max(|anchor - positive| - |anchor - negative| + margin, 0)` of each row, reduced.

        Args:
            anchor: `(…, D)`, f64, f32, bf16 or f16.
            positive: of the shape and dtype of `anchor`.
            negative: of the shape and dtype of `anchor`.
            margin: by how much the negative is to be further away, above 0.
            p: exponent of the norm, at least 0; infinite for the largest difference.
            eps: added to differences.
            swap: whether the distance of the positive from the negative counts instead of the anchor's where it is
                smaller.
            reduction: `mean`, `sum` or `none`.
            out: array for the result.

        Returns:
            One element of shape `()`, or an array of one element a row. PyTorch tensors that need gradients have them.

        Raises:
            CallError: `not-an-array`, `wrong-rank`, `wrong-shape`, `wrong-dtype`, `bad-argument`, or
                `out-needs-no-gradient`.

        Numerics:
            Computed and added up in f32 (f64 for f64) in one order, rounded once.

        Source: Balntas et al., Learning local feature descriptors with triplets, 2016;
            `torch.nn.functional.triplet_margin_loss`.
        """
        vectors = {"anchor": anchor, "positive": positive, "negative": negative}
        return self.run(vectors, _triplet_options(margin, p, eps, swap), reduction, out)

    def backward(
        self,
        grad: Any,
        anchor: Any,
        positive: Any,
        negative: Any,
        margin: float = 1.0,
        p: float = 2.0,
        eps: float = 1e-6,
        swap: bool = False,
        *,
        reduction: Reduction = "mean",
    ) -> dict[str, Any]:
        """Return the gradients of a call: `{"anchor": …, "positive": …, "negative": …}`.

        Args:
            grad: gradient of the result, of its shape and of the dtype of `anchor`.
            anchor: as in the call, like all that follow.
            positive: as in the call.
            negative: as in the call.
            margin: as in the call.
            p: as in the call.
            eps: as in the call.
            swap: as in the call.
            reduction: as in the call.

        Raises:
            CallError: as for the call.
        """
        vectors = {"anchor": anchor, "positive": positive, "negative": negative}
        return self.gradients(grad, vectors, _triplet_options(margin, p, eps, swap), reduction)

    def reference(
        self,
        anchor: Any,
        positive: Any,
        negative: Any,
        margin: float = 1.0,
        p: float = 2.0,
        eps: float = 1e-6,
        swap: bool = False,
        *,
        reduction: Reduction = "mean",
    ) -> Any:
        """Return the exact result in NumPy and float64."""
        here, near, far = map(arrays.host, (anchor, positive, negative))
        to_near, to_far, between = (_norm(a - b + eps, p) for a, b in ((here, near), (here, far), (near, far)))
        least = np.minimum(to_far, between) if swap else to_far
        return reduced_exactly(np.maximum(to_near - least + margin, 0), reduction)

    def explain(self) -> Any:
        """Return what the last forward kernel ran: backend, schedule, emulations.

        Raises:
            CallError: `never-run` before the first call.
        """
        return triplet_kernels.triplets.explain()

    def compile(
        self,
        width: int,
        dtype: DType = bf16,
        *,
        p: float = 2.0,
        swap: bool = False,
        target: str | None = None,
        dump: Sequence[str] = (),
    ) -> Artifact:
        """Return the kernel of rows' losses; needs no device.

        Args:
            width: elements of a row.
            dtype: dtype of the rows.
            p: exponent of the norm.
            swap: as in a call.
            target: as for `ts.compile`.
            dump: as for `ts.compile`.
        """
        acc = rows.accumulator(dtype)
        given: dict[str, Any] = {
            "T": dtype,
            "L": acc,
            "S": acc,
            "power": power_of(p),
            "swap": swap,
            "acc": acc,
            **blocks(_MANY, width, 3),
        }
        return compiled(triplet_kernels.triplets, target, dump, {"D": width}, **given)

    @staticmethod
    def flops(shape: Sequence[int]) -> int:
        """Return the operations of a call: differences, powers and sums of two distances."""
        return 8 * prod(shape)

    @staticmethod
    def bytes(shape: Sequence[int], dtype: DType) -> int:
        """Return the bytes of the three inputs, each once."""
        return 3 * prod(shape) * dtype.bytes


def _norm(u: Any, p: float) -> Any:
    """Return the exact norms of rows."""
    if p in (0, inf):
        return np.count_nonzero(u, -1) if p == 0 else np.abs(u).max(-1)
    return (np.abs(u) ** p).sum(-1) ** (1 / p)


def _triplet_options(margin: float, p: float, eps: float, swap: bool) -> tuple[float, float, float, bool]:
    if not margin > 0 or not p >= 0:
        raise CallError(
            f"p is {p}" if margin > 0 else f"margin is {margin}",
            code="bad-argument",
            location=caller_location(),
            help="margin is above 0, p at least 0",
        )
    return float(margin), float(p), float(eps), bool(swap)


cosine_embedding = CosineEmbedding()
"""The cosine embedding loss; see `CosineEmbedding.__call__`."""
triplet_margin = TripletMargin()
"""The triplet margin loss; see `TripletMargin.__call__`."""
