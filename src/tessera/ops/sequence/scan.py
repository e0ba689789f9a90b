"""Gated linear recurrence along time."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from tessera.driver.compile import compile as compiled
from tessera.errors import CallError, caller_location
from tessera.numerics.dtypes import DType, bf16
from tessera.ops import arrays, rows
from tessera.ops.operation import library_op
from tessera.ops.refusals import checked
from tessera.ops.sequence import scan_step
from tessera.ops.sequence.scan_step import BACKWARD, FORWARD
from tessera.target.artifact import Artifact


@library_op
class Scan:
    """Gated linear recurrence; `__call__` says what it takes."""

    @checked
    def __call__(self, gate: Any, x: Any, *, out: Any = None) -> Any:
        """Return the states `h[b, t, d] = gate[b, t, d] * h[b, t - 1, d] + x[b, t, d]`, from states of zero on.

        Args:
            gate: `(B, L, D)`, f64, f32, bf16 or f16.
            x: as `gate`.
            out: array for the result, of any strides; not `gate` or `x`.

        Returns:
            An array as `x`. PyTorch tensors that need gradients have them.

        Raises:
            CallError: `not-an-array`, `wrong-rank`, `wrong-shape`, `wrong-dtype`, or `out-needs-no-gradient`.

        Numerics:
            States are kept in f32 (f64 for f64) and rounded once each. Steps of a block of times are combined pairwise,
            in one order: the same bits in every run. Products of gates that overflow make what follows infinite or NaN.

        Source: Blelloch, Prefix sums and their applications, 1990; Martin and Cundy, Parallelizing linear recurrent
            neural nets over sequence length, 2018.
        """
        _check(gate, x)
        if out is None:
            return FORWARD(gate, x)[0]
        rows.checked_out(out, arrays.shape_of(x, "x"), arrays.dtype_of(x), gate, x)
        rows.apart(out, gate=gate, x=x)
        FORWARD.into((out,), gate, x)
        return out

    def backward(self, grad: Any, gate: Any, x: Any, states: Any = None) -> dict[str, Any]:
        """Return the gradients of a call by the names of its arguments.

        Args:
            grad: gradient of the states.
            gate: as in the call.
            x: as in the call.
            states: the call's result; computed again where it is None.

        Raises:
            CallError: as for the call.
        """
        _check(gate, x)
        for name, one in (("grad", grad), ("states", states)):
            if one is not None:
                rows.same_shape(one, name, arrays.shape_of(x, "x"))
                rows.same_dtype(one, name, x, "x")
        kept = FORWARD.fresh(gate, x)[0] if states is None else states
        of_gate, of_x = BACKWARD.fresh(grad, gate, kept)
        return {"gate": of_gate, "x": of_x}

    def reference(self, gate: Any, x: Any) -> Any:
        """Return the exact result in NumPy and float64."""
        a, found = arrays.host(gate), arrays.host(x).copy()
        for t in range(1, found.shape[1]):
            found[:, t] += a[:, t] * found[:, t - 1]
        return np.asarray(found)

    def explain(self) -> Any:
        """Return what the last forward kernel ran: backend, schedule, emulations.

        Raises:
            CallError: `never-run` before the first call.
        """
        return scan_step.forward.explain()

    def compile(
        self, channels: int, dtype: DType = bf16, *, gradient: bool = False, target: str | None = None
    ) -> Artifact:
        """Return a kernel for so many channels; needs no device.

        Args:
            channels: size of the last dimension.
            dtype: dtype of all arrays.
            gradient: whether the kernel of the gradients is wanted.
            target: as for `ts.compile`.
        """
        kernel = scan_step.backward if gradient else scan_step.forward
        return compiled(kernel, target, (), {"D": channels}, T=dtype, acc=rows.accumulator(dtype))

    @staticmethod
    def flops(shape: Sequence[int]) -> int:
        """Return the operations of the recurrence: a product and a sum a state."""
        return 2 * prod(shape)

    @staticmethod
    def bytes(shape: Sequence[int], dtype: DType) -> int:
        """Return the bytes of gates, inputs and states."""
        return 3 * prod(shape) * dtype.bytes


def _check(gate: Any, x: Any) -> None:
    """Check the arguments of a call."""
    shape = arrays.shape_of(x, "x")
    rows.float_dtype(x, "x")
    if len(shape) != 3:
        raise CallError(
            f"argument 'x' has {len(shape)} dimensions",
            code="wrong-rank",
            location=caller_location(),
            help="it takes 3: batch, time, channels",
        )
    rows.same_shape(gate, "gate", shape)
    rows.same_dtype(gate, "gate", x, "x")


scan = Scan()
"""Gated linear recurrence; see `Scan.__call__`."""
