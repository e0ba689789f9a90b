"""The step behind the gated delta rule: chunks, blocks, kernels."""

from __future__ import annotations

from typing import Any

from tessera.data import dataclass
from tessera.numerics.dtypes import DType
from tessera.ops import arrays, rows
from tessera.ops.recurrent import chunk_kernels, delta_kernels
from tessera.ops.recurrent.chunk_steps import last_states, padded, states_of_chunks
from tessera.ops.steps import Arguments, Step, like
from tessera.target.records import TargetRecord

_STEPS = 64
_APART = 2048
"""Bytes of shared memory that operands leave to what threads exchange."""
_SMALLEST = 16
_LONG_KEY = 128
"""Elements of keys from which on programs have narrower parts of states, which are as long."""


@dataclass(frozen=True)
class DeltaChunks:
    """Steps of chunks, and parts of states, of kernels for a machine.

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

    def steps(self) -> int:
        """Return the steps of a chunk: as many as fit shared memory with the matrices that are inverted."""
        found = _STEPS
        if self.target.simt:
            while max(self._inverting(found), self._updating(found)) > self.target.shared_bytes - _APART:
                if found == _SMALLEST:
                    break
                found //= 2
        return found

    def part(self) -> int:
        """Return the elements of values whose states a program has."""
        most = 128 if not self.target.simt else 32 if self.key > _LONG_KEY else 64
        return min(most, padded(self.value))

    def _inverting(self, steps: int) -> int:
        """Return the bytes of the matrices of a chunk, its keys and its values."""
        matrices = 7 if self.dtype.bits > 16 else 4
        return 4 * matrices * steps * steps + steps * (self.key + self.value) * self.dtype.bytes

    def _updating(self, steps: int) -> int:
        """Return the bytes of keys, scaled keys and values of a chunk, and of the state that they change."""
        part = self.part()
        return (steps * (2 * self.key + part) + self.key * part) * self.dtype.bytes


def _results(q: Any, k: Any, v: Any, *_others: Any) -> Arguments:
    return like(v, v.shape), last_states(q, v, None)


def _launch(results: Arguments, q: Any, k: Any, v: Any, g: Any, beta: Any, initial: Any, scale: float) -> None:
    out, last = results
    if 0 in last.shape:
        return
    dtype = arrays.dtype_of(q)
    chunks = DeltaChunks(rows.record_of(q), dtype, int(q.shape[3]), int(v.shape[3]))
    steps, part = chunks.steps(), chunks.part()
    keys, values, written = like(v, (*v.shape[:3], q.shape[3])), like(v, v.shape), like(v, v.shape)
    before = states_of_chunks(q, v, steps)
    if 0 not in out.shape:
        delta_kernels.factors(k, v, g, beta, keys, values, is_narrow=dtype.bits == 16, Q=steps)
    delta_kernels.states(k, g, keys, values, initial, before, written, last, Q=steps, BP=part)
    if 0 not in out.shape:
        chunk_kernels.outputs(q, k, written, g, None, None, before, out, scale, Q=steps, BP=part)


FORWARD = Step(
    "gated_delta_rule",
    "(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, Tensor? initial, float scale) -> (Tensor, Tensor)",
    _results,
    _launch,
)
