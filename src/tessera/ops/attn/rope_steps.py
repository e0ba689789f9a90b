"""The step behind the rotary embedding, and that of its gradient: the same by the negative angle."""

from __future__ import annotations

from collections.abc import Sequence
from math import log2, prod
from typing import Any

from tessera.ops import arrays, rows
from tessera.ops.attn.rope_kernels import rotate
from tessera.ops.steps import Arguments, Gradient, Step, like, missing

SCHEMA = (
    "(Tensor q, Tensor? k, Tensor? positions, Tensor? cos, Tensor? sin, float base, int pairs, bool interleaved, "
    "bool heads_first) -> (Tensor, Tensor)"
)
_ANGLES = 1024
"""Pairs of a program's block: eight a thread."""


def block_of(pairs: int, positions: int) -> int:
    """Return how many positions a program turns."""
    return 1 if positions < 4 else max(1, min(32, _ANGLES // pairs))


def _results(q: Any, k: Any, *_others: Any) -> Arguments:
    return like(q, q.shape), missing(q) if k is None else like(k, k.shape)


def _by_heads(array: Any, heads_first: bool) -> Any:
    return array if array is None or heads_first else array.swapaxes(1, 2)


def _launch(direction: float, results: Arguments, given: Arguments) -> None:
    q, k, positions, cos, sin, base, pairs, interleaved, heads_first = given
    out_q, out_k = results[0], None if k is None else results[1]
    if not prod(q.shape) and (k is None or not prod(k.shape)):
        return
    acc = rows.accumulator(arrays.dtype_of(q))
    q_, k_, to_q, to_k = (_by_heads(one, heads_first) for one in (q, k, out_q, out_k))
    rotate(
        q_,
        k_,
        positions,
        cos,
        sin,
        to_q,
        to_k,
        log2(base) / pairs,
        direction,
        pairs=pairs,
        interleaved=interleaved,
        copies=2 * pairs < q.shape[3] and not (q is out_q and (k is None or k is out_k)),
        acc=acc,
        BS=block_of(pairs, q_.shape[2]),
    )


def _launch_forward(results: Arguments, *given: Any) -> None:
    _launch(1.0, results, given)


def _launch_backward(results: Arguments, *given: Any) -> None:
    _launch(-1.0, results, given)


BACKWARD = Step("rope_backward", SCHEMA, _results, _launch_backward)


def _keep(given: Arguments, _results: Arguments) -> Arguments:
    q, k, *others = given
    return tuple(q.shape), None if k is None else tuple(k.shape), *others


def _gradient_arguments(kept: Arguments, grads: Sequence[Any], _needed: Sequence[bool]) -> Arguments:
    shape_q, shape_k, *others = kept
    some = next(one for one in grads if one is not None)
    grad_q = some.new_zeros(shape_q) if grads[0] is None else grads[0]
    if shape_k is None:
        return grad_q, None, *others
    return grad_q, some.new_zeros(shape_k) if grads[1] is None else grads[1], *others


def _gradients_of(kept: Arguments) -> tuple[int | None, ...]:
    return 0, None if kept[1] is None else 1, *(None,) * 7


FORWARD = Step("rope", SCHEMA, _results, _launch_forward, Gradient(BACKWARD, _keep, _gradient_arguments, _gradients_of))
