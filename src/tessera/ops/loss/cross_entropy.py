"""Cross entropy of logits and classes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from tessera.driver.compile import compile as compiled
from tessera.errors import CallError, caller_location
from tessera.numerics.dtypes import DType, bf16, i64
from tessera.ops import arrays, rows
from tessera.ops.loss import class_kernels as kernels
from tessera.ops.loss import reductions, soft_steps
from tessera.ops.loss.class_steps import BACKWARD, FORWARD, LAST, blocks, forward_kernel
from tessera.ops.loss.reductions import Reduction
from tessera.ops.operation import library_op
from tessera.ops.refusals import checked, refused
from tessera.ops.steps import present
from tessera.target.artifact import Artifact

INDICES = ("i64", "i32")


def check_target(target: Any, shape: Sequence[Any]) -> None:
    """Check class indices.

    Raises:
        CallError: `not-an-array`, `wrong-dtype` or `wrong-shape`.
    """
    found = arrays.dtype_of(target, "target")
    if found.name not in INDICES:
        raise CallError(
            f"argument 'target' has the dtype {found}",
            code="wrong-dtype",
            location=caller_location(),
            help=f"it takes class indices of {' or '.join(INDICES)}",
        )
    rows.same_shape(target, "target", shape)


def check_options(label_smoothing: float, z_loss: float) -> tuple[float, float]:
    """Return the options of a row's loss.

    Raises:
        CallError: `bad-argument`.
    """
    smoothing, factor = float(label_smoothing), float(z_loss)
    if not 0 <= smoothing <= 1 or not factor >= 0:
        wrong = f"z_loss is {z_loss}" if 0 <= smoothing <= 1 else f"label_smoothing is {label_smoothing}"
        raise CallError(
            wrong,
            code="bad-argument",
            location=caller_location(),
            help="label_smoothing is from 0 to 1, z_loss at least 0",
        )
    return smoothing, factor


def exact_rows(
    x: Any, target: Any, weight: Any, ignore_index: int, smoothing: float, z_loss: float, reduction: str
) -> Any:
    """Return the exact losses of rows of logits in NumPy and float64, reduced."""
    count, width = x.shape
    target = np.asarray(target, np.int64)
    weights = np.ones(width) if weight is None else arrays.host(weight)
    is_kept, is_inside = target != ignore_index, (target >= 0) & (target < width)
    place = np.where(is_inside, target, 0)
    most = x.max(1, initial=-np.inf, keepdims=True)
    lse = most[:, 0] + np.log(np.exp(x - most).sum(1))
    own = (lse - x[np.arange(count), place]) * weights[place]
    losses = (1 - smoothing) * own + smoothing / width * ((lse[:, None] - x) * weights).sum(1)
    losses = losses + z_loss * weights[place] * lse**2
    losses = np.where(is_kept, np.where(is_inside, losses, np.nan), 0.0)
    if reduction != "mean":
        return reductions.reduced_exactly(losses, reduction)
    with np.errstate(invalid="ignore"):
        return losses.sum() / (weights[place] * is_kept).sum()


def exact_soft_rows(x: Any, p: Any, weight: Any, smoothing: float, z_loss: float) -> Any:
    """Return the exact losses of rows of logits and probabilities in NumPy and float64."""
    weights = 1.0 if weight is None else arrays.host(weight)
    most = x.max(1, initial=-np.inf, keepdims=True)
    lse = most + np.log(np.exp(x - most).sum(1, keepdims=True))
    shares = (p * (1 - smoothing) + smoothing / x.shape[1]) * weights
    return (shares * (lse - x)).sum(1) + z_loss * (p * weights).sum(1) * lse[:, 0] ** 2


def is_soft(target: Any) -> bool:
    """Return whether targets are probabilities of classes."""
    return arrays.dtype_of(target, "target").name in rows.FLOATS


@library_op
class CrossEntropy:
    """Cross entropy of logits and classes; `__call__` says what it takes."""

    @checked
    def __call__(
        self,
        input: Any,
        target: Any,
        weight: Any = None,
        *,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        out: Any = None,
    ) -> Any:
        """Return `-weight[t]·log_softmax(input)[t]` of each row, `t` its target, reduced.

        With label smoothing `s` the target's share is `1 - s`, and each of the `C` classes has `s/C` more. Where the
        target are probabilities `p` it is the sum of `-p·weight·log_softmax(input)`.

        Args:
            input: logits `(C,)`, `(N, C)` or `(N, C, d1, …)`, f64, f32, bf16 or f16.
            target: classes, i64 or i32, of the shape of `input` without `C`; or probabilities of classes, of the shape
                of `input`, f64, f32, bf16 or f16.
            weight: `(C,)`, weights of classes, or None; it has no gradient.
            ignore_index: target whose rows have no loss and no gradient; below 0 where the target are probabilities.
            reduction: `mean`, by the sum of the weights of the targets that are not ignored, by the number of rows
                where these are probabilities; `sum` or `none`.
            label_smoothing: `s`, from 0 to 1.
            z_loss: `z_loss·weight[t]·logsumexp(row)²` is added to each row's loss; it keeps logits from drifting. Of
                probabilities the weight is their sum, each times its class's.
            out: array for the result.

        Returns:
            One element of shape `()`, or an array of one element a row, of the dtype of `input`. PyTorch tensors that
            need gradients have them.

        Raises:
            CallError: `not-an-array`, `wrong-rank`, `wrong-shape`, `wrong-dtype`, `bad-argument`, or
                `out-needs-no-gradient`.

        Numerics:
            Computed and added up in f32 (f64 for f64) in one order, rounded once. A kernel cannot refuse a target: one
            that is neither a class nor `ignore_index` gives its row, and a reduction, a loss and gradients of NaN.
            A mean of rows that are all ignored is NaN.

        Source: `torch.nn.functional.cross_entropy`; z-loss: Chowdhery et al., PaLM, 2022.
        """
        shape, call = self._arguments(input, target, weight, ignore_index, reduction, label_smoothing, z_loss)
        shape, step = shape if reduction == "none" else (), soft_steps.FORWARD if is_soft(target) else FORWARD
        if out is None:
            return step(*call)[0].reshape(shape)
        rows.checked_out(out, shape, arrays.dtype_of(input), input, target, weight)
        results = step.results(*call)
        step.into(results, *call)
        return reductions.given_out(out, results[0].reshape(shape))

    def backward(
        self,
        grad: Any,
        input: Any,
        target: Any,
        weight: Any = None,
        *,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
    ) -> dict[str, Any]:
        """Return the gradient of a call: `{"input": …}`, and that of probabilities, `"target"`.

        Args:
            grad: gradient of the result, of its shape and of the dtype of `input`.
            input: as in the call, like all that follow.
            target: as in the call.
            weight: as in the call.
            ignore_index: as in the call.
            reduction: as in the call.
            label_smoothing: as in the call.
            z_loss: as in the call.

        Raises:
            CallError: as for the call.
        """
        shape, call = self._arguments(input, target, weight, ignore_index, reduction, label_smoothing, z_loss)
        rows.same_shape(grad, "grad", shape if reduction == "none" else ())
        reductions.same_dtype(grad, "grad", arrays.dtype_of(input))
        if is_soft(target):
            given = rows.vector(grad), *soft_steps.keep(call, soft_steps.FORWARD.fresh(*call)), [True, True]
            pair = zip(("input", "target"), soft_steps.BACKWARD.fresh(*given), strict=True)
            return {name: _from_rows(one, arrays.shape_of(input, "input")) for name, one in pair}
        x, classes, weights, ignored, smoothing, _z_loss, _reduction = call
        _out, stats, whole = FORWARD.fresh(*call)
        kept = x, classes, weights, stats, present(whole), ignored, smoothing, reduction != "none"
        (found,) = BACKWARD.fresh(rows.vector(grad), *kept)
        return {"input": _from_rows(found, arrays.shape_of(input, "input"))}

    def reference(
        self,
        input: Any,
        target: Any,
        weight: Any = None,
        *,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
    ) -> Any:
        """Return the exact result in NumPy and float64."""
        shape, call = self._arguments(input, target, weight, ignore_index, reduction, label_smoothing, z_loss)
        x, classes = arrays.host(call[0]), arrays.host(call[1])
        if is_soft(target):
            losses = reductions.reduced_exactly(exact_soft_rows(x, classes, weight, *call[3:5]), reduction)
            return losses.reshape(shape if reduction == "none" else ())
        found = exact_rows(x, classes, weight, ignore_index, call[4], call[5], reduction)
        return found.reshape(shape) if reduction == "none" else found

    def _arguments(
        self,
        input: Any,
        target: Any,
        weight: Any,
        ignore_index: int,
        reduction: str,
        label_smoothing: float,
        z_loss: float,
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Return the shape of rows and what the step is called with."""
        reductions.check_reduction(reduction)
        smoothing, factor = check_options(label_smoothing, z_loss)
        shape = tuple(arrays.shape_of(input, "input"))
        rows.float_dtype(input, "input")
        if not shape:
            raise CallError(
                "argument 'input' has no dimensions",
                code="wrong-rank",
                location=caller_location(),
                help="its dimension 1, or its only one, has the classes",
            )
        place = min(1, len(shape) - 1)
        outer, width = (*shape[:place], *shape[place + 1 :]), shape[place]
        if width == 0:
            raise CallError(
                "argument 'input' has no classes",
                code="wrong-shape",
                location=caller_location(),
                help="give at least one class",
            )
        rows.check_vectors({"weight": weight}, (width,))
        x = rows.matrix(_classes_last(input, len(shape)), prod(outer), width)
        if is_soft(target):
            _check_soft(target, shape, ignore_index)
            chances = rows.matrix(_classes_last(target, len(shape)), prod(outer), width)
            divisor = reductions.divisor_of(reduction, (x.shape[0],))
            return outer, (x, chances, weight, smoothing, factor, reduction != "none", divisor)
        check_target(target, outer)
        return outer, (x, rows.vector(target), weight, int(ignore_index), smoothing, factor, reduction)

    def explain(self) -> Any:
        """Return what the last forward kernel ran: backend, schedule, emulations.

        Raises:
            CallError: `never-run` before the first call.
        """
        return LAST["forward"].explain()

    def compile(
        self,
        width: int,
        dtype: DType = bf16,
        *,
        label_smoothing: float = 0.0,
        gradient: bool = False,
        target: str | None = None,
        dump: Sequence[str] = (),
    ) -> Artifact:
        """Return the kernel of rows' losses, or that of their gradients, for i64 targets; needs no device.

        Args:
            width: classes.
            dtype: dtype of the logits.
            label_smoothing: as in a call.
            gradient: whether the gradients' kernel is meant.
            target: as for `ts.compile`.
            dump: as for `ts.compile`.
        """
        acc = rows.accumulator(dtype)
        given: dict[str, Any] = {"T": dtype, "I": i64, "S": acc, "acc": acc, "weight": None}
        given["smooths"] = label_smoothing > 0
        if gradient:
            given |= blocks(width)
            return compiled(kernels.backward, target, dump, {"V": width}, L=dtype, reduced=True, **given)
        kernel, constants = forward_kernel(width, acc)
        return compiled(kernel, target, dump, {"V": width}, L=acc, **given | constants)

    @staticmethod
    def flops(shape: Sequence[int]) -> int:
        """Return the operations of a call: maxima, distances, exponentials and sums."""
        return 4 * prod(shape)

    @staticmethod
    def bytes(shape: Sequence[int], dtype: DType, gradient: bool = False) -> int:
        """Return the bytes of logits, each once; with the gradient they are read again and it is written."""
        return prod(shape) * dtype.bytes * (3 if gradient else 1)


def _check_soft(target: Any, shape: Sequence[Any], ignore_index: int) -> None:
    """Check probabilities of classes.

    Raises:
        CallError: `wrong-shape` or `bad-argument`.
    """
    rows.same_shape(target, "target", shape)
    if ignore_index >= 0:
        raise refused(f"ignore_index is {ignore_index}", "bad-argument", "probabilities of classes are not ignored")


def _classes_last(input: Any, rank: int) -> Any:
    return input if rank < 3 else arrays.axis_moved(input, 1, -1)


def _from_rows(found: Any, shape: Sequence[Any]) -> Any:
    """Return rows of classes in the shape of the logits."""
    if len(shape) < 3:
        return found.reshape(shape)
    return arrays.axis_moved(found.reshape((shape[0], *shape[2:], shape[1])), -1, 1)


cross_entropy = CrossEntropy()
"""Cross entropy of logits and classes; see `CrossEntropy.__call__`."""
