"""The steps behind the gated delta rule: chunks, blocks, kernels, gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.data import dataclass
from tessera.ops import arrays, rows
from tessera.ops.recurrent import delta_kernels as kernels
from tessera.ops.recurrent.chunk_kernels import outputs
from tessera.ops.recurrent.chunk_steps import APART, SMALLEST, HeadsOn, last_states, padded, states_of_chunks
from tessera.ops.steps import Arguments, Gradient, Step, like, zeros

_STEPS = 64
_LONG_KEY = 128
"""Elements of keys from which on programs have narrower parts of states, which are as long."""


class DeltaChunks(HeadsOn):
    """Steps of chunks, and parts of states, of kernels for a machine."""

    def steps(self) -> int:
        """Return the steps of a chunk: as many as fit shared memory with the matrices that are inverted."""
        found = _STEPS
        if self.target.simt:
            while max(self._inverting(found), self._updating(found)) > self.target.shared_bytes - APART:
                if found == SMALLEST:
                    break
                found //= 2
        return found

    def part(self) -> int:
        """Return the elements of values whose states a program has."""
        most = 128 if not self.target.simt else 32 if self.key > _LONG_KEY else 64
        return min(most, padded(self.value))

    def gradient_steps(self) -> int:
        """Return the steps of a chunk of gradients, as shared memory holds what is read for each."""
        found = self.steps()
        if self.target.simt:
            while self._solving(found) > self.target.shared_bytes - APART and found > SMALLEST:
                found //= 2
        return found

    def gradient_part(self) -> int:
        """Return the elements of keys, or of values, that programs of gradients take at a time."""
        return 32 if self.target.simt else 128

    def _inverting(self, steps: int) -> int:
        """Return the bytes of the matrices of a chunk, its keys and its values."""
        matrices = 7 if self.dtype.bits > 16 else 4
        return 4 * matrices * steps * steps + steps * (self.key + self.value) * self.dtype.bytes

    def _solving(self, steps: int) -> int:
        """Return the bytes of queries and keys of a chunk, parts of states and values, and matrices."""
        part = self.gradient_part()
        kept = steps * (3 * self.key + 5 * part) + 2 * self.key * part
        return 16 * steps * steps + kept * self.dtype.bytes

    def _updating(self, steps: int) -> int:
        """Return the bytes of keys, scaled keys and values of a chunk, and of the state that they change."""
        part = self.part()
        return (steps * (2 * self.key + part) + self.key * part) * self.dtype.bytes


def _results(q: Any, k: Any, v: Any, *_others: Any) -> Arguments:
    return like(v, v.shape), last_states(q, v, None)


@dataclass(frozen=True)
class _Forward:
    """What the states of a call are made of, and give.

    Args:
        keys: scaled keys.
        written: what steps write to states.
        before: states before chunks.
    """

    keys: Any
    written: Any
    before: Any

    @classmethod
    def of(cls, last: Any, k: Any, v: Any, g: Any, beta: Any, initial: Any, steps: int, part: int) -> _Forward:
        """Compute them, and the last state."""
        keys, values = like(v, (*v.shape[:3], k.shape[3])), like(v, v.shape)
        made = cls(keys, like(v, v.shape), states_of_chunks(k, v, steps))
        if 0 not in v.shape:
            kernels.factors(k, v, g, beta, keys, values, is_narrow=is_narrow(k), Q=steps)
        kernels.states(k, g, keys, values, initial, made.before, made.written, last, Q=steps, BP=part)
        return made


def is_narrow(array: Any) -> bool:
    """Return whether elements have 16 bits."""
    return arrays.dtype_of(array).bits == 16


def _launch(results: Arguments, q: Any, k: Any, v: Any, g: Any, beta: Any, initial: Any, scale: float) -> None:
    out, last = results
    if 0 in last.shape:
        return
    chunks = DeltaChunks.of(q, v)
    steps, part = chunks.steps(), chunks.part()
    made = _Forward.of(last, k, v, g, beta, initial, steps, part)
    if 0 not in out.shape:
        outputs(q, k, made.written, g, None, None, made.before, out, scale, Q=steps, BP=part)


def _gradient_results(
    grad: Any, grad_last: Any, q: Any, k: Any, v: Any, g: Any, beta: Any, initial: Any, scale: float
) -> Arguments:
    return (*(like(one, one.shape) for one in (q, k, v, g, beta)), last_states(q, v, None))


def _launch_gradient(
    results: Arguments,
    grad: Any,
    grad_last: Any,
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    initial: Any,
    scale: float,
) -> None:
    of_q, of_k, of_v, of_g, of_beta, of_initial = results
    if 0 in of_initial.shape:
        for one in results:
            arrays.zero(one)
        return
    if arrays.view(grad, "grad").strides[3] != 1:  # of a sum, for example
        grad = rows.contiguous(grad)
    chunks = DeltaChunks.of(q, v)
    steps, part, piece = chunks.gradient_steps(), chunks.part(), chunks.gradient_part()
    made = _Forward.of(last_states(q, v, None), k, v, g, beta, initial, steps, part)
    after, of_written, solved = states_of_chunks(q, v, steps), like(v, v.shape), like(v, v.shape)
    goals = after, of_written, of_initial
    kernels.state_gradients(grad, q, k, g, made.keys, grad_last, *goals, scale, Q=steps, BP=min(part, piece))
    if 0 in v.shape:
        for one in results[:-1]:
            arrays.zero(one)
        return
    states = made.before, after
    given = grad, q, k, v, g, beta, made.written, of_written
    goals = solved, of_v, of_g, of_beta
    wide, long = min(piece, padded(chunks.value)), min(piece, padded(chunks.key))
    kernels.value_gradients(*given, *states, *goals, scale, is_narrow=is_narrow(q), Q=steps, BP=wide)
    given = grad, q, k, g, beta, made.written, solved
    kernels.key_gradients(*given, *states, of_q, of_k, scale, Q=steps, BN=long, BP=wide)


BACKWARD = Step(
    "gated_delta_rule_backward",
    "(Tensor grad, Tensor? grad_last, Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, Tensor? initial, "
    "float scale) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _gradient_results,
    _launch_gradient,
)


def _keep(given: Arguments, _results: Arguments) -> Arguments:
    return given


def _gradient_arguments(kept: Arguments, grads: Sequence[Any], _needed: Sequence[bool]) -> Arguments:
    grad = zeros(kept[2]) if grads[0] is None else grads[0]
    return grad, grads[1], *kept


def _gradients_of(_kept: Arguments) -> tuple[int | None, ...]:
    return 0, 1, 2, 3, 4, 5, None


FORWARD = Step(
    "gated_delta_rule",
    "(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, Tensor? initial, float scale) -> (Tensor, Tensor)",
    _results,
    _launch,
    Gradient(BACKWARD, _keep, _gradient_arguments, _gradients_of),
)
