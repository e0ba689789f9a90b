"""Linear attention whose states decay, as products of chunks."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Literal

import numpy as np

from tessera.driver.compile import target_record
from tessera.numerics.dtypes import DType, bf16
from tessera.ops import arrays, rows
from tessera.ops.operation import library_op
from tessera.ops.recurrent import chunk_kernels as kernels
from tessera.ops.recurrent.calls import (
    check_operands,
    check_state,
    converted,
    factor_of,
    first_state,
    in_f32,
    recurrence,
    repeated,
)
from tessera.ops.recurrent.chunk_steps import BACKWARD, FORWARD, Chunks, compiled_part, last_states
from tessera.ops.refusals import checked
from tessera.target.artifact import Artifact


@library_op
class LinearAttention:
    """Linear attention; `__call__` says what it takes."""

    @checked
    def __call__(
        self,
        q: Any,
        k: Any,
        v: Any,
        g: Any,
        *,
        scale: float | None = None,
        initial_state: Any = None,
        return_state: bool = False,
    ) -> Any:
        """Return causal linear attention whose state decays by one number for each head and place.

            state[t] = exp(g[t])·state[t-1] + k[t]⊗v[t]
            out[t] = scale·q[t]·state[t]

        Args:
            q: queries `(B, L, G, D)`; f32, bf16 or f16.
            k: keys, as `q`.
            v: values `(B, L, H, E)` of the dtype of `q`; `G` divides `H`, and neighbouring heads share queries and
                keys.
            g: logarithms of decays `(B, L, H)`, not positive; f32, bf16 or f16.
            scale: of results; by default `D ** -0.5`.
            initial_state: `(B, H, D, E)` in f32; zeros by default.
            return_state: whether the last state is returned too.

        Returns:
            `(B, L, H, E)` of the dtype of `q`; with `return_state` also `(B, H, D, E)` in f32. PyTorch tensors that
            need gradients have them.

        Raises:
            CallError: `not-an-array`, `wrong-rank`, `wrong-shape`, `wrong-dtype` or `bad-argument`.

        Numerics:
            Decays, states and sums are computed in f32. Values times decays, scores, and states before chunks are
            rounded to the dtype of `q` before they are multiplied. A key or value that is not finite makes NaN of its
            whole chunk of up to 128 positions, those before it too.

        Source: Yang et al., Gated linear attention transformers with hardware-efficient training, 2024.
        """
        out, last = FORWARD(*_arguments(q, k, v, g, initial_state), factor_of(q, scale))
        return (out, last) if return_state else out

    def backward(
        self,
        grad: Any,
        q: Any,
        k: Any,
        v: Any,
        g: Any,
        *,
        scale: float | None = None,
        initial_state: Any = None,
        grad_state: Any = None,
    ) -> dict[str, Any]:
        """Return the gradients of a call by the names of its arrays, of their dtypes.

        Args:
            grad: gradient of the result.
            q: as in the call, like those that follow.
            k: as in the call.
            v: as in the call.
            g: as in the call.
            scale: as in the call.
            initial_state: as in the call.
            grad_state: gradient of the last state; None where nothing depends on it.

        Raises:
            CallError: as for the call.
        """
        given = _arguments(q, k, v, g, initial_state)
        rows.same_shape(grad, "grad", v.shape)
        rows.same_dtype(grad, "grad", v, "v")
        check_state(grad_state, last_states(q, v, None).shape)
        of_q, of_k, of_v, of_g, _, _, of_state = BACKWARD.fresh(grad, grad_state, *given, factor_of(q, scale))
        found = {"q": of_q, "k": of_k, "v": of_v, "g": converted(of_g, arrays.dtype_of(g))}
        return found if initial_state is None else {**found, "initial_state": of_state}

    def reference(
        self,
        q: Any,
        k: Any,
        v: Any,
        g: Any,
        *,
        scale: float | None = None,
        initial_state: Any = None,
        return_state: bool = False,
    ) -> Any:
        """Return the exact result, step by step, in NumPy and float64."""
        values, rates = arrays.host(v), arrays.host(g)
        batch, _, heads, size = values.shape
        queries, keys = repeated(q, heads), repeated(k, heads)
        state = first_state(initial_state, (batch, heads, keys.shape[3], size))
        found = recurrence(queries, keys, values, rates, np.ones_like(rates), state, factor_of(q, scale))
        return found if return_state else found[0]

    def explain(self) -> Any:
        """Return what the last kernel of results ran: backend, schedule, emulations.

        Raises:
            CallError: `never-run` before the first call.
        """
        return kernels.outputs.explain()

    def compile(
        self,
        head_dim: int,
        dtype: DType = bf16,
        *,
        value_dim: int | None = None,
        part: Literal["states", "outputs"] = "outputs",
        target: str | None = None,
        dump: Sequence[str] = (),
    ) -> Artifact:
        """Return a kernel of the forward pass for head sizes; needs no device.

        Args:
            head_dim: elements of a head of queries and keys.
            dtype: of queries, keys and values.
            value_dim: elements of a head of values; by default `head_dim`.
            part: which kernel: the states before chunks, or the results by them.
            target: as for `ts.compile`.
            dump: as for `ts.compile`.
        """
        wide = head_dim if value_dim is None else value_dim
        chunks = Chunks(target_record(target), dtype, head_dim, wide)
        sizes = {"B": 4, "L": 4096, "H": 16, "G": 16, "N": head_dim, "P": wide}
        return compiled_part(chunks, part, sizes, target, dump, factor=None)

    @staticmethod
    def flops(q: Sequence[int], v: Sequence[int]) -> int:
        """Return the operations of the recurrence, step by step, of a call with `q` and `v` of such shapes.

        Products of chunks have more.
        """
        return 4 * prod(v) * q[3]

    @staticmethod
    def bytes(q: Sequence[int], v: Sequence[int], dtype: DType) -> int:
        """Return the bytes of queries, keys, values, results and decays (in f32), each once."""
        return 2 * (prod(q) + prod(v)) * dtype.bytes + 4 * prod(v[:3])


def _arguments(q: Any, k: Any, v: Any, g: Any, state: Any) -> tuple[Any, ...]:
    """Return what the steps are called with.

    Raises:
        CallError: as for the call.
    """
    check_operands(q, k, v, ("q", "k", "v"))
    batch, places, heads, size = arrays.shape_of(v, "v")
    rows.check_rank(g, "g", 3)
    rows.same_shape(g, "g", (batch, places, heads))
    check_state(state, (batch, heads, arrays.shape_of(q, "q")[3], size))
    return q, k, v, in_f32(g, "g"), None, None, state


linear_attention = LinearAttention()
"""Linear attention; see `LinearAttention.__call__`."""
