"""What losses of elements share: their steps, reductions and gradients."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar

import numpy as np

from tessera.driver.compile import compile as compiled
from tessera.driver.compile import target_record
from tessera.errors import CallError, caller_location
from tessera.numerics.dtypes import DType, bf16
from tessera.ops import approximations, arrays, reduce, rows
from tessera.ops.loss import pointwise_kernels as kernels
from tessera.ops.loss import reductions
from tessera.ops.steps import Arguments, Gradient, Step, like, missing, present
from tessera.target.artifact import Artifact

BLOCK = 1024
_BYTES = 8192
"""Of a block of each array on a GPU: its threads wait for four accesses to it, and add up what they come to first."""
_PROGRAMS_A_UNIT = 4
"""As many run at once: were there more, the last of them would run alone."""


def _results(
    x: Any, y: Any, weight: Any, pos_weight: Any, over: Any, kind: str, knob: float, reduced: bool, divisor: int
) -> Arguments:
    return (like(x, (1,) if reduced else x.shape),)


def _whole(x: Any, weight: Any, pos_weight: Any) -> tuple[bool, bool]:
    """Return which weights there are as many of as elements."""
    first, second = (one is not None and one.shape[0] == x.shape[0] for one in (weight, pos_weight))
    return first, second


def _numbers(dtype: DType, simt: bool) -> dict[str, Any]:
    """Return the constants of kernels that say how they compute with a dtype."""
    return {"rough": approximations.suffice(dtype, simt), "acc": rows.accumulator(dtype)}


def _blocks(dtype: DType, simt: bool) -> dict[str, int]:
    """Return the elements that a program adds up at a time, and how many of them before others."""
    first = max(1, _BYTES // (BLOCK * dtype.bytes)) if simt else 1
    return {"B": first * BLOCK, "F": first}


def _launch(
    results: Arguments,
    x: Any,
    y: Any,
    weight: Any,
    pos_weight: Any,
    over: Any,
    kind: str,
    knob: float,
    reduced: bool,
    divisor: int,
) -> None:
    (out,) = results
    if int(x.shape[0]) == 0:
        reductions.fill(out, 0.0 * reductions.scale(divisor if over is None else 0))
        return
    given = x, y, weight, pos_weight
    fixed = {"kind": kind, "whole": _whole(x, weight, pos_weight), **_numbers(arrays.dtype_of(x), rows.is_simt(x))}
    if not reduced:
        kernels.elements(*given, out, knob, **fixed)
        return
    count, blocks = int(x.shape[0]), _blocks(arrays.dtype_of(x), rows.is_simt(x))
    each = rows.share(count, 1, x, _PROGRAMS_A_UNIT, blocks["B"])
    parts = like(x, (-(-count // each),), fixed["acc"])
    kernels.sums(*given, parts, each, knob, **fixed, **blocks)
    reductions.total(parts, None, out, over, reductions.scale(divisor), acc=fixed["acc"])


def _gradient_results(
    grad: Any,
    x: Any,
    y: Any,
    weight: Any,
    pos_weight: Any,
    over: Any,
    kind: str,
    knob: float,
    reduced: bool,
    divisor: int,
    wanted: Sequence[bool],
) -> Arguments:
    first, second = (like(x, x.shape) if one else missing(x) for one in wanted)
    return first, second


def _launch_gradient(
    results: Arguments,
    grad: Any,
    x: Any,
    y: Any,
    weight: Any,
    pos_weight: Any,
    over: Any,
    kind: str,
    knob: float,
    reduced: bool,
    divisor: int,
    wanted: Sequence[bool],
) -> None:
    grad_x, grad_y = map(present, results)
    if grad_x is grad_y is None:
        return
    fixed = {
        "kind": kind,
        "whole": _whole(x, weight, pos_weight),
        **_numbers(arrays.dtype_of(x), rows.is_simt(x)),
        "reduced": reduced,
    }
    given = grad, x, y, weight, pos_weight, over, grad_x, grad_y
    kernels.gradients(*given, knob, reductions.scale(divisor), **fixed)


BACKWARD = Step(
    "loss_of_elements_backward",
    "(Tensor grad, Tensor x, Tensor y, Tensor? weight, Tensor? pos_weight, Tensor? over, str kind, float knob, "
    "bool reduced, SymInt divisor, bool[] wanted) -> (Tensor, Tensor)",
    _gradient_results,
    _launch_gradient,
)


def _keep(given: Arguments, results: Arguments) -> Arguments:
    return given


def _gradient_arguments(kept: Arguments, grads: Sequence[Any], needed: Sequence[bool]) -> Arguments:
    return (grads[0], *kept, [needed[0], needed[1]])


def _gradients_of(kept: Arguments) -> tuple[int | None, ...]:
    return (0, 1, None, None, None, None, None, None, None)


FORWARD = Step(
    "loss_of_elements",
    "(Tensor x, Tensor y, Tensor? weight, Tensor? pos_weight, Tensor? over, str kind, float knob, bool reduced, "
    "SymInt divisor) -> Tensor",
    _results,
    _launch,
    Gradient(BACKWARD, _keep, _gradient_arguments, _gradients_of),
)


def spread(weights: Any, name: str, shape: Sequence[Any]) -> Any:
    """Return weights that broadcast to a shape as a vector that repeats over its elements; None stays None.

    Raises:
        CallError: `not-an-array`, `wrong-dtype` or `wrong-shape`.
    """
    if weights is None:
        return None
    rows.float_dtype(weights, name)
    found = arrays.shape_of(weights, name)
    while len(found) and found[0] == 1:
        found = found[1:]
    if tuple(shape[len(shape) - len(found) :]) == tuple(found):
        return rows.vector(weights)
    pairs = zip(found[::-1], shape[::-1], strict=False)
    if len(found) > len(shape) or any(one not in (1, extent) for one, extent in pairs):
        raise CallError(
            f"argument {name!r} has the shape {tuple(arrays.shape_of(weights, name))}, which does not broadcast to "
            f"{tuple(shape)}",
            code="wrong-shape",
            location=caller_location(),
            help="its sizes are 1 or those of the losses, from the last dimension on",
        )
    whole = weights.expand(shape) if arrays.is_torch(weights) else np.broadcast_to(weights, tuple(shape))
    return rows.vector(whole)


class PointwiseLoss:
    """A loss that each element has for itself."""

    reductions: ClassVar[tuple[str, ...]] = ("mean", "sum", "none")
    flops_an_element: ClassVar[int]
    kinds: ClassVar[tuple[str, ...]]
    is_mean_of_weights: ClassVar[bool] = False
    """Whether a mean is divided by the sum of the weights."""

    def run(
        self,
        kind: str,
        input: Any,
        target: Any,
        reduction: str,
        knob: float = 0.0,
        weight: Any = None,
        pos_weight: Any = None,
        out: Any = None,
    ) -> Any:
        """Compute a call; see the subclasses."""
        shape, call = self._arguments(kind, input, target, reduction, knob, weight, pos_weight)
        shape = shape if reduction == "none" else ()
        if out is None:
            return FORWARD(*call)[0].reshape(shape)
        rows.checked_out(out, shape, arrays.dtype_of(input), input, target, weight, pos_weight)
        results = FORWARD.results(*call)
        FORWARD.into(results, *call)
        return reductions.given_out(out, results[0].reshape(shape))

    def gradients(
        self,
        grad: Any,
        kind: str,
        input: Any,
        target: Any,
        reduction: str,
        knob: float = 0.0,
        weight: Any = None,
        pos_weight: Any = None,
    ) -> dict[str, Any]:
        """Return gradients by the arguments' names."""
        shape, call = self._arguments(kind, input, target, reduction, knob, weight, pos_weight)
        rows.same_shape(grad, "grad", shape if reduction == "none" else ())
        reductions.same_dtype(grad, "grad", arrays.dtype_of(input))
        found = BACKWARD.fresh(rows.vector(grad), *call, [True, True])
        return {"input": found[0].reshape(shape), "target": found[1].reshape(shape)}

    def _arguments(
        self, kind: str, input: Any, target: Any, reduction: str, knob: float, weight: Any, pos_weight: Any
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Return the shape and what the step is called with."""
        reductions.check_reduction(reduction, self.reductions)
        shape, dtype = arrays.shape_of(input, "input"), rows.float_dtype(input, "input")
        rows.same_shape(target, "target", shape)
        reductions.same_dtype(target, "target", dtype)
        weights = spread(weight, "weight", shape), spread(pos_weight, "pos_weight", shape)
        divisor, over = reductions.divisor_of(reduction, shape), None
        if self.is_mean_of_weights and weight is not None and reduction == "mean":
            divisor, over = 1, reduce.sum(weights[0], 0, True, dtype=rows.accumulator(dtype))
        x, y = rows.vector(input), rows.vector(target)
        return tuple(shape), (x, y, *weights, over, kind, float(knob), reduction != "none", divisor)

    def explain(self) -> Any:
        """Return what the last kernel of a reduced loss of elements ran: backend, schedule, emulations.

        Raises:
            CallError: `never-run` before the first call.
        """
        return kernels.sums.explain()

    def compile(
        self,
        dtype: DType = bf16,
        *,
        gradient: bool = False,
        target: str | None = None,
        dump: Sequence[str] = (),
    ) -> Artifact:
        """Return the kernel of partial sums, or that of both gradients of the sum; needs no device.

        Args:
            dtype: dtype of the arrays.
            gradient: whether the gradients' kernel is meant.
            target: as for `ts.compile`.
            dump: as for `ts.compile`.
        """
        given: dict[str, Any] = dict.fromkeys(("weight", "pos_weight"))
        simt = bool(target_record(target).simt)
        given |= {"T": dtype, "kind": self.kinds[0], "whole": (False, False), **_numbers(dtype, simt)}
        if gradient:
            return compiled(kernels.gradients, target, dump, None, reduced=True, over=None, **given)
        given |= _blocks(dtype, simt)
        return compiled(kernels.sums, target, dump, None, S=rows.accumulator(dtype), **given)

    @classmethod
    def flops(cls, shape: Sequence[int]) -> int:
        """Return the operations of a reduced call."""
        return (cls.flops_an_element + 1) * prod(shape)

    @staticmethod
    def bytes(shape: Sequence[int], dtype: DType) -> int:
        """Return the bytes of both arrays, each once."""
        return 2 * prod(shape) * dtype.bytes
