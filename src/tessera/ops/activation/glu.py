"""What gated activations share: an activated gate times `up`, given apart or as halves of one array."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar

import numpy as np

from tessera.driver.compile import compile as compiled
from tessera.errors import CallError, caller_location
from tessera.numerics.dtypes import DType, bf16
from tessera.ops import arrays, rows
from tessera.ops.activation import kernels
from tessera.ops.activation.steps import BACKWARD, FORWARD
from tessera.ops.epilogue import reference as exact
from tessera.target.artifact import Artifact


def _relu(x: Any) -> Any:
    return np.maximum(x, 0)


_EXACT = {"silu": exact.silu, "gelu": exact.gelu_erf, "gelu_tanh": exact.gelu_tanh, "relu": _relu}
_OPERATIONS = {"silu": 4, "gelu": 12, "gelu_tanh": 9, "relu": 1}


class Glu:
    """A gated activation."""

    act: ClassVar[str]
    """The activation, where a call does not choose it."""

    def run(self, act: str, gate: Any, up: Any, out: Any) -> Any:
        """Compute a call; see the subclasses."""
        shape, *given = _arguments(gate, up)
        if out is None:
            return FORWARD(*given, act)[0].reshape(shape)
        rows.checked_out(out, shape, arrays.dtype_of(gate), gate, up)
        goal = rows.out_rows(out, 1) if shape else None
        if goal is None:
            out[...] = FORWARD(*given, act)[0].reshape(shape)
        else:
            FORWARD.into((goal,), *given, act)
        return out

    def gradients(self, act: str, grad: Any, gate: Any, up: Any) -> dict[str, Any]:
        """Return gradients by the arguments' names."""
        shape, *given = _arguments(gate, up)
        rows.same_shape(grad, "grad", shape)
        rows.same_dtype(grad, "grad", gate, "gate")
        of_gate, of_up = BACKWARD.fresh(rows.matrix(grad, prod(shape[:-1]), shape[-1] if shape else 1), *given, act)
        found = {"gate": of_gate.reshape(gate.shape)}
        return found if up is None else found | {"up": of_up.reshape(gate.shape)}

    def exact(self, act: str, gate: Any, up: Any) -> Any:
        """Return the exact result in NumPy and float64."""
        g = arrays.host(gate)
        g, u = np.split(g, 2, -1) if up is None else (g, arrays.host(up))
        return _EXACT[act](g) * u

    def explain(self) -> Any:
        """Return what the last forward kernel of a gated activation ran: backend, schedule, emulations.

        Raises:
            CallError: `never-run` before the first call.
        """
        return kernels.forward.explain()

    def compiled(self, act: str, width: int, dtype: DType, gradient: bool, target: str | None) -> Artifact:
        """Return a kernel for rows of a width; see the subclasses."""
        kernel = kernels.backward if gradient else kernels.forward
        return compiled(kernel, target, (), {"N": width}, T=dtype, act=act, acc=rows.accumulator(dtype))

    def compile(
        self, width: int, dtype: DType = bf16, *, gradient: bool = False, target: str | None = None
    ) -> Artifact:
        """Return a kernel for rows of a width; needs no device.

        Args:
            width: elements of a row of the result.
            dtype: dtype of the rows.
            gradient: whether the kernel of the gradients is wanted.
            target: as for `ts.compile`.
        """
        return self.compiled(self.act, width, dtype, gradient, target)

    @classmethod
    def flops(cls, shape: Sequence[int]) -> int:
        """Return the operations of a call whose result has a shape: the activation's and a multiplication."""
        return (_OPERATIONS[cls.act] + 1) * prod(shape)

    @staticmethod
    def bytes(shape: Sequence[int], dtype: DType, gradient: bool = False) -> int:
        """Return the bytes of gate, up and result, each once; of a gradient, those of three arrays and two results."""
        return prod(shape) * dtype.bytes * (5 if gradient else 3)


def _arguments(gate: Any, up: Any) -> tuple[tuple[Any, ...], Any, Any]:
    """Return the result's shape, and gate and up as rows."""
    shape = arrays.shape_of(gate, "gate")
    rows.float_dtype(gate, "gate")
    if up is None and (not shape or shape[-1] % 2):
        raise CallError(
            f"argument 'gate' has the shape {tuple(shape)}",
            code="wrong-shape",
            location=caller_location(),
            help="without `up`, its last dimension holds the gate and as many elements of `up`",
        )
    if up is not None:
        rows.same_shape(up, "up", shape)
        rows.same_dtype(up, "up", gate, "gate")
    count, width = prod(shape[:-1]), shape[-1] if shape else 1
    made = shape if up is not None else (*shape[:-1], width // 2)
    return made, rows.matrix(gate, count, width), rows.matrix(up, count, width)
