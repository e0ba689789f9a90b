"""The steps behind linear recurrences: chunks, blocks, kernels, gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from tessera.data import dataclass
from tessera.driver.compile import compile as compiled
from tessera.numerics.dtypes import DType, f32
from tessera.ops import arrays, rows
from tessera.ops.recurrent import chunk_kernels as kernels
from tessera.ops.steps import Arguments, Gradient, Step, like, missing, zeros
from tessera.target.artifact import Artifact
from tessera.target.records import TargetRecord

APART = 2048
"""Bytes of shared memory that operands leave to what threads exchange."""
SMALLEST = 16
_STEPS = 64
"""Of chunks of gradients, at most."""


@dataclass(frozen=True)
class HeadsOn:
    """Heads on a machine, by which chunks and blocks are chosen.

    Args:
        target: the machine.
        dtype: of queries, keys and values.
        key: elements of a head of queries and keys.
        value: elements of a head of values.
    """

    target: TargetRecord
    dtype: DType
    key: int
    value: int

    @classmethod
    def of(cls, q: Any, v: Any) -> Self:
        """Return those of arrays, on their device."""
        return cls(rows.record_of(q), arrays.dtype_of(q), int(q.shape[3]), int(v.shape[3]))


class Chunks(HeadsOn):
    """Steps of chunks, and blocks of states, of kernels for a machine."""

    def forward(self) -> int:
        """Return the steps of a chunk of results."""
        if not self.target.simt:
            return 64
        part = self.blocks()["BP"]
        return self._fitting(64 if self.dtype.bits > 16 else 128, 2 * self.key + part, self.key * part)

    def gradients(self) -> int:
        """Return the steps of a chunk of gradients."""
        if not self.target.simt:
            return 64
        part = self.gradient_part()
        return self._fitting(_STEPS, 2 * self.key + 4 * part + 3 * _STEPS, 2 * self.key * part)

    def gradient_part(self) -> int:
        """Return the elements of values that programs of gradients take at a time."""
        return min(32 if self.target.simt else 128, padded(self.value))

    def blocks(self) -> dict[str, int]:
        """Return the parts of states that programs have: all of them where threads do not share registers."""
        most = 64 if self.target.simt else 128
        return {"BN": min(most, padded(self.key)), "BP": min(most, padded(self.value))}

    def of_keys(self) -> int:
        """Return the elements of queries and keys whose gradients a program has: as many as registers hold."""
        return min(32, self.blocks()["BN"]) if self.target.simt and self.dtype.bits > 16 else self.blocks()["BN"]

    def _fitting(self, steps: int, moved: int, kept: int) -> int:
        """Return at most so many steps, as shared memory holds them.

        Args:
            steps: at most.
            moved: elements of a step.
            kept: elements beside.
        """
        room = (self.target.shared_bytes - APART) // self.dtype.bytes - kept
        while steps * moved > room and steps > SMALLEST:
            steps //= 2
        return steps


def padded(size: int) -> int:
    """Return a size rounded up to what matrix units take."""
    return -(-size // SMALLEST) * SMALLEST


def compiled_part(
    chunks: Chunks, part: str, sizes: dict[str, int], target: str | None, dump: Sequence[str], **given: Any
) -> Artifact:
    """Return a kernel of the forward pass.

    Args:
        chunks: steps and blocks.
        part: `states` or `outputs`.
        sizes: of dimensions.
        target: as for `ts.compile`.
        dump: as for `ts.compile`.
        given: None for arrays that are missing.
    """
    blocks = chunks.blocks()
    given |= {"T": chunks.dtype, "Q": chunks.forward(), "BP": blocks["BP"]}
    if part == "outputs":
        return compiled(kernels.outputs, target, dump, sizes, skip=None, **given)
    turned = "factor" not in given
    return compiled(
        kernels.states, target, dump, sizes, initial=None, turned=turned, reverse=False, BN=blocks["BN"], **given
    )


def last_states(q: Any, v: Any, factor: Any) -> Any:
    """Return unset last states: `(B, H, P, N)` where rates have a factor, else `(B, H, N, P)`."""
    sizes = (v.shape[3], q.shape[3]) if factor is not None else (q.shape[3], v.shape[3])
    return like(v, (v.shape[0], v.shape[2], *sizes), f32)


def states_of_chunks(q: Any, v: Any, steps: int) -> Any:
    """Return an unset array for a state of each chunk."""
    batch, places, heads, size = map(int, v.shape)
    return like(v, (batch, -(-places // steps), heads, int(q.shape[3]), size))


def _results(q: Any, k: Any, v: Any, g: Any, factor: Any, *_others: Any) -> Arguments:
    return like(v, v.shape), last_states(q, v, factor)


def _launch(
    results: Arguments, q: Any, k: Any, v: Any, g: Any, factor: Any, skip: Any, initial: Any, scale: float
) -> None:
    out, last = results
    if 0 in last.shape:
        return
    chunks = Chunks.of(q, v)
    steps, blocks = chunks.forward(), chunks.blocks()
    before = states_of_chunks(q, v, steps)
    turned = factor is not None
    kernels.states(k, v, g, factor, initial, before, last, 1.0, turned=turned, reverse=False, Q=steps, **blocks)
    if 0 not in out.shape:
        kernels.outputs(q, k, v, g, factor, skip, before, out, scale, Q=steps, BP=blocks["BP"])


def _gradient_results(
    grad: Any, grad_last: Any, q: Any, k: Any, v: Any, g: Any, factor: Any, skip: Any, initial: Any, *_others: Any
) -> Arguments:
    of_factor, of_skip = (missing(g) if one is None else like(one, one.shape) for one in (factor, skip))
    return (
        like(q, q.shape),
        like(k, k.shape),
        like(v, v.shape),
        like(g, g.shape),
        of_factor,
        of_skip,
        last_states(q, v, factor),
    )


def _launch_gradient(
    results: Arguments,
    grad: Any,
    grad_last: Any,
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    factor: Any,
    skip: Any,
    initial: Any,
    scale: float,
) -> None:
    of_q, of_k, of_v, of_g, of_factor, of_skip, of_initial = results
    if 0 in of_initial.shape:
        for one in results:
            arrays.zero(one)
        return
    if arrays.view(grad, "grad").strides[3] != 1:  # of a sum, for example
        grad = rows.contiguous(grad)
    chunks = Chunks.of(q, v)
    steps, blocks, turned = chunks.gradients(), chunks.blocks(), factor is not None
    before, after = states_of_chunks(q, v, steps), states_of_chunks(q, v, steps)
    common = {"turned": turned, "Q": steps, **blocks}
    kernels.states(q, grad, g, factor, grad_last, after, of_initial, scale, reverse=True, **common)
    if 0 in v.shape:
        for one in results[:-1]:
            arrays.zero(one)
        return
    unused = last_states(q, v, factor)
    kernels.states(k, v, g, factor, initial, before, unused, 1.0, reverse=False, **common)
    count, part = before.shape[:3], chunks.gradient_part()
    of_factors, of_skips = (None if one is None else like(one, count) for one in (factor, skip))
    given = grad, q, k, v, g, factor
    kernels.value_gradients(*given, skip, before, after, of_v, of_g, of_factors, of_skips, scale, Q=steps, BP=part)
    kernels.key_gradients(*given, before, after, of_q, of_k, scale, Q=steps, BN=chunks.of_keys(), BP=part)
    for parts, goal in ((of_factors, of_factor), (of_skips, of_skip)):
        if parts is not None:
            kernels.summed(parts, goal)


BACKWARD = Step(
    "decayed_recurrence_backward",
    "(Tensor grad, Tensor? grad_last, Tensor q, Tensor k, Tensor v, Tensor g, Tensor? factor, Tensor? skip, "
    "Tensor? initial, float scale) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _gradient_results,
    _launch_gradient,
)


def _keep(given: Arguments, _results: Arguments) -> Arguments:
    return given


def _gradient_arguments(kept: Arguments, grads: Sequence[Any], _needed: Sequence[bool]) -> Arguments:
    grad = zeros(kept[2]) if grads[0] is None else grads[0]
    return grad, grads[1], *kept


def _gradients_of(_kept: Arguments) -> tuple[int | None, ...]:
    return 0, 1, 2, 3, 4, 5, 6, None


FORWARD = Step(
    "decayed_recurrence",
    "(Tensor q, Tensor k, Tensor v, Tensor g, Tensor? factor, Tensor? skip, Tensor? initial, float scale) -> "
    "(Tensor, Tensor)",
    _results,
    _launch,
    Gradient(BACKWARD, _keep, _gradient_arguments, _gradients_of),
)
