"""State space models with a decay of each head, as products of chunks."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Literal

from tessera.driver.compile import target_record
from tessera.numerics.dtypes import DType, bf16
from tessera.ops import arrays, rows
from tessera.ops.operation import library_op
from tessera.ops.recurrent import chunk_kernels as kernels
from tessera.ops.recurrent.calls import (
    check_operands,
    check_state,
    converted,
    first_state,
    in_f32,
    recurrence,
    repeated,
)
from tessera.ops.recurrent.chunk_steps import BACKWARD, FORWARD, Chunks, compiled_part, last_states
from tessera.ops.refusals import checked
from tessera.target.artifact import Artifact


@library_op
class SSD:
    """State space duality; `__call__` says what it takes."""

    @checked
    def __call__(
        self,
        x: Any,
        dt: Any,
        a: Any,
        b: Any,
        c: Any,
        *,
        d: Any = None,
        initial_state: Any = None,
        return_state: bool = False,
    ) -> Any:
        """Return the results of the recurrence of Mamba-2, as `mamba_chunk_scan_combined` does.

            state[t] = exp(dt[t]·a)·state[t-1] + dt[t]·x[t]⊗b[t]
            y[t] = state[t]·c[t] + d·x[t]

        Args:
            x: inputs `(B, L, H, P)`; f32, bf16 or f16.
            dt: steps `(B, L, H)`, positive (after softplus); f32, bf16 or f16.
            a: rates of heads `(H,)`, negative; f32, bf16 or f16.
            b: input weights `(B, L, G, N)` of the dtype of `x`; `G` divides `H`, and neighbouring heads share them.
            c: output weights, as `b`.
            d: factors of what inputs add to results `(H,)`; f32, bf16 or f16.
            initial_state: `(B, H, P, N)` in f32; zeros by default.
            return_state: whether the last state is returned too.

        Returns:
            `(B, L, H, P)` of the dtype of `x`; with `return_state` also `(B, H, P, N)` in f32. PyTorch tensors that
            need gradients have them.

        Raises:
            CallError: `not-an-array`, `wrong-rank`, `wrong-shape` or `wrong-dtype`.

        Numerics:
            Decays, states and sums are computed in f32. Inputs times decays, the products of `b` and `c`, and states
            before chunks are rounded to the dtype of `x` before they are multiplied. An input or `b` that is not finite
            makes NaN of its whole chunk of up to 128 positions, those before it too.

        Source: Dao and Gu, Transformers are SSMs: generalized models and efficient algorithms through structured state
        space duality, 2024.
        """
        out, last = FORWARD(*_arguments(x, dt, a, b, c, d, initial_state), 1.0)
        return (out, last) if return_state else out

    def backward(
        self,
        grad: Any,
        x: Any,
        dt: Any,
        a: Any,
        b: Any,
        c: Any,
        *,
        d: Any = None,
        initial_state: Any = None,
        grad_state: Any = None,
    ) -> dict[str, Any]:
        """Return the gradients of a call by the names of its arrays, of their dtypes.

        Args:
            grad: gradient of the result.
            x: as in the call, like those that follow.
            dt: as in the call.
            a: as in the call.
            b: as in the call.
            c: as in the call.
            d: as in the call.
            initial_state: as in the call.
            grad_state: gradient of the last state; None where nothing depends on it.

        Raises:
            CallError: as for the call.
        """
        given = _arguments(x, dt, a, b, c, d, initial_state)
        rows.same_shape(grad, "grad", x.shape)
        rows.same_dtype(grad, "grad", x, "x")
        check_state(grad_state, last_states(given[0], x, given[4]).shape)
        found = BACKWARD.fresh(grad, grad_state, *given, 1.0)
        named: dict[str, Any] = dict(zip(("c", "b", "x", "dt", "a", "d", "initial_state"), found, strict=True))
        arguments = {"x": x, "dt": dt, "a": a, "b": b, "c": c, "d": d, "initial_state": initial_state}
        return {
            name: converted(named[name], arrays.dtype_of(one)) for name, one in arguments.items() if one is not None
        }

    def reference(
        self,
        x: Any,
        dt: Any,
        a: Any,
        b: Any,
        c: Any,
        *,
        d: Any = None,
        initial_state: Any = None,
        return_state: bool = False,
    ) -> Any:
        """Return the exact result, step by step, in NumPy and float64."""
        wide, steps = arrays.host(x), arrays.host(dt)
        batch, _, heads, size = wide.shape
        keys, queries = repeated(b, heads), repeated(c, heads)
        state = first_state(initial_state, (batch, heads, size, keys.shape[3])).swapaxes(2, 3)
        out, last = recurrence(queries, keys, wide, steps * arrays.host(a), steps, state, 1.0)
        if d is not None:
            out = out + arrays.host(d)[:, None] * wide
        return (out, last.swapaxes(2, 3)) if return_state else out

    def explain(self) -> Any:
        """Return what the last kernel of results ran: backend, schedule, emulations.

        Raises:
            CallError: `never-run` before the first call.
        """
        return kernels.outputs.explain()

    def compile(
        self,
        head_dim: int,
        state_dim: int,
        dtype: DType = bf16,
        *,
        part: Literal["states", "outputs"] = "outputs",
        target: str | None = None,
        dump: Sequence[str] = (),
    ) -> Artifact:
        """Return a kernel of the forward pass for head sizes; needs no device.

        Args:
            head_dim: elements of a head of inputs.
            state_dim: elements of input and output weights.
            dtype: of inputs.
            part: which kernel: the states before chunks, or the results by them.
            target: as for `ts.compile`.
            dump: as for `ts.compile`.
        """
        chunks = Chunks(target_record(target), dtype, state_dim, head_dim)
        sizes = {"B": 4, "L": 4096, "H": 32, "G": 1, "N": state_dim, "P": head_dim}
        return compiled_part(chunks, part, sizes, target, dump)

    @staticmethod
    def flops(x: Sequence[int], b: Sequence[int]) -> int:
        """Return the operations of the recurrence, step by step, of a call with `x` and `b` of such shapes.

        Products of chunks have more.
        """
        return 4 * prod(x) * b[3]

    @staticmethod
    def bytes(x: Sequence[int], b: Sequence[int], dtype: DType) -> int:
        """Return the bytes of inputs, results, weights and steps (in f32), each once."""
        return (2 * prod(x) + 2 * prod(b)) * dtype.bytes + 4 * prod(x[:3])


def _arguments(x: Any, dt: Any, a: Any, b: Any, c: Any, d: Any, state: Any) -> tuple[Any, ...]:
    """Return what the steps are called with.

    Raises:
        CallError: as for the call.
    """
    check_operands(c, b, x, ("c", "b", "x"))
    batch, places, heads, size = arrays.shape_of(x, "x")
    rows.check_rank(dt, "dt", 3)
    rows.same_shape(dt, "dt", (batch, places, heads))
    rows.same_shape(a, "a", (heads,))
    if d is not None:
        rows.same_shape(d, "d", (heads,))
    check_state(state, (batch, heads, size, arrays.shape_of(b, "b")[3]))
    return c, b, x, in_f32(dt, "dt"), in_f32(a, "a"), None if d is None else in_f32(d, "d"), state


ssd = SSD()
"""State space duality; see `SSD.__call__`."""
