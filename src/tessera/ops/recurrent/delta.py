"""The gated delta rule: linear attention that replaces what its state holds for a key."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Literal

import numpy as np

from tessera.driver.compile import compile as compiled
from tessera.driver.compile import target_record
from tessera.numerics.dtypes import DType, bf16
from tessera.ops import arrays, rows
from tessera.ops.operation import library_op
from tessera.ops.recurrent import chunk_kernels, delta_kernels
from tessera.ops.recurrent.calls import (
    check_operands,
    check_state,
    converted,
    factor_of,
    first_state,
    in_f32,
    repeated,
)
from tessera.ops.recurrent.chunk_steps import last_states
from tessera.ops.recurrent.delta_steps import BACKWARD, FORWARD, DeltaChunks
from tessera.ops.refusals import checked
from tessera.target.artifact import Artifact


@library_op
class GatedDeltaRule:
    """The gated delta rule; `__call__` says what it takes."""

    @checked
    def __call__(
        self,
        q: Any,
        k: Any,
        v: Any,
        g: Any,
        beta: Any,
        *,
        scale: float | None = None,
        initial_state: Any = None,
        return_state: bool = False,
    ) -> Any:
        """Return the results of the gated delta rule, as `chunk_gated_delta_rule` of flash-linear-attention does.

            state[t] = exp(g[t])·state[t-1]
            state[t] += k[t]⊗(beta[t]·(v[t] - k[t]·state[t]))
            out[t] = scale·q[t]·state[t]

        Args:
            q: queries `(B, L, G, D)`; f32, bf16 or f16.
            k: keys, as `q`; of norm 1 at most, or states may grow without bound.
            v: values `(B, L, H, E)` of the dtype of `q`; `G` divides `H`, and neighbouring heads share queries and
                keys.
            g: logarithms of decays `(B, L, H)`, not positive; f32, bf16 or f16.
            beta: how much of what the state holds for a key is replaced `(B, L, H)`, from 0 to 1; f32, bf16 or f16.
            scale: of results; by default `D ** -0.5`.
            initial_state: `(B, H, D, E)` in f32; zeros by default.
            return_state: whether the last state is returned too.

        Returns:
            `(B, L, H, E)` of the dtype of `q`; with `return_state` also `(B, H, D, E)` in f32. PyTorch tensors that
            need gradients have them.

        Raises:
            CallError: `not-an-array`, `wrong-rank`, `wrong-shape`, `wrong-dtype` or `bad-argument`.

        Numerics:
            Decays, states, sums and the inverses of chunks are computed in f32, products of these inverses with
            mantissas of 10 bits for 16-bit operands. What is multiplied by keys, values or states is rounded to the
            dtype of `q`. A key or value that is not finite makes NaN of its whole chunk of up to 128 positions, those
            before it too.

        Source: Yang, Kautz and Hatamizadeh, Gated delta networks: improving Mamba2 with delta rule, 2024.
        """
        out, last = FORWARD(*_arguments(q, k, v, g, beta, initial_state), factor_of(q, scale))
        return (out, last) if return_state else out

    def backward(
        self,
        grad: Any,
        q: Any,
        k: Any,
        v: Any,
        g: Any,
        beta: Any,
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
            beta: as in the call.
            scale: as in the call.
            initial_state: as in the call.
            grad_state: gradient of the last state; None where nothing depends on it.

        Raises:
            CallError: as for the call.
        """
        given = _arguments(q, k, v, g, beta, initial_state)
        rows.same_shape(grad, "grad", v.shape)
        rows.same_dtype(grad, "grad", v, "v")
        check_state(grad_state, last_states(q, v, None).shape)
        *found, of_state = BACKWARD.fresh(grad, grad_state, *given, factor_of(q, scale))
        arguments = {"q": q, "k": k, "v": v, "g": g, "beta": beta}
        made = {
            name: converted(one, arrays.dtype_of(arguments[name])) for name, one in zip(arguments, found, strict=True)
        }
        return made if initial_state is None else {**made, "initial_state": of_state}

    def reference(
        self,
        q: Any,
        k: Any,
        v: Any,
        g: Any,
        beta: Any,
        *,
        scale: float | None = None,
        initial_state: Any = None,
        return_state: bool = False,
    ) -> Any:
        """Return the exact result, step by step, in NumPy and float64."""
        values, decays, strengths = arrays.host(v), np.exp(arrays.host(g)), arrays.host(beta)
        batch, places, heads, size = values.shape
        queries, keys = repeated(q, heads), repeated(k, heads)
        state = first_state(initial_state, (batch, heads, keys.shape[3], size))
        out = np.empty(values.shape)
        for t in range(places):
            state = decays[:, t, :, None, None] * state
            held = np.einsum("bhd,bhde->bhe", keys[:, t], state)
            added = strengths[:, t, :, None] * (values[:, t] - held)
            state = state + keys[:, t, :, :, None] * added[:, :, None, :]
            out[:, t] = factor_of(q, scale) * np.einsum("bhd,bhde->bhe", queries[:, t], state)
        return (out, state) if return_state else out

    def explain(self) -> Any:
        """Return what the last kernel of states ran: backend, schedule, emulations.

        Raises:
            CallError: `never-run` before the first call.
        """
        return delta_kernels.states.explain()

    def compile(
        self,
        head_dim: int,
        dtype: DType = bf16,
        *,
        value_dim: int | None = None,
        part: Literal["factors", "states", "outputs"] = "states",
        target: str | None = None,
        dump: Sequence[str] = (),
    ) -> Artifact:
        """Return a kernel of the forward pass for head sizes; needs no device.

        Args:
            head_dim: elements of a head of queries and keys.
            dtype: of queries, keys and values.
            value_dim: elements of a head of values; by default `head_dim`.
            part: which kernel: the scaled keys and values of chunks, the states before chunks, or the results.
            target: as for `ts.compile`.
            dump: as for `ts.compile`.
        """
        wide = head_dim if value_dim is None else value_dim
        chunks = DeltaChunks(target_record(target), dtype, head_dim, wide)
        sizes = {"B": 4, "L": 4096, "H": 16, "G": 16, "N": head_dim, "P": wide}
        given: dict[str, Any] = {"T": dtype, "Q": chunks.steps()}
        if part == "factors":
            return compiled(delta_kernels.factors, target, dump, sizes, is_narrow=dtype.bits == 16, **given)
        given["BP"] = chunks.part()
        if part == "states":
            return compiled(delta_kernels.states, target, dump, sizes, initial=None, **given)
        return compiled(chunk_kernels.outputs, target, dump, sizes, factor=None, skip=None, **given)

    @staticmethod
    def flops(q: Sequence[int], v: Sequence[int]) -> int:
        """Return the operations of the recurrence, step by step, of a call with `q` and `v` of such shapes.

        Products of chunks have more.
        """
        return 6 * prod(v) * q[3]

    @staticmethod
    def bytes(q: Sequence[int], v: Sequence[int], dtype: DType) -> int:
        """Return the bytes of queries, keys, values, results, and of decays and strengths in f32, each once."""
        return 2 * (prod(q) + prod(v)) * dtype.bytes + 8 * prod(v[:3])


def _arguments(q: Any, k: Any, v: Any, g: Any, beta: Any, state: Any) -> tuple[Any, ...]:
    """Return what the step is called with.

    Raises:
        CallError: as for the call.
    """
    check_operands(q, k, v, ("q", "k", "v"))
    batch, places, heads, size = arrays.shape_of(v, "v")
    for name, one in (("g", g), ("beta", beta)):
        rows.check_rank(one, name, 3)
        rows.same_shape(one, name, (batch, places, heads))
    check_state(state, (batch, heads, arrays.shape_of(q, "q")[3], size))
    return q, k, v, in_f32(g, "g"), in_f32(beta, "beta"), state


gated_delta_rule = GatedDeltaRule()
"""The gated delta rule; see `GatedDeltaRule.__call__`."""
