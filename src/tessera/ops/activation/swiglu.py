"""SwiGLU: a gate activated by SiLU times another array."""

from __future__ import annotations

from typing import Any

from tessera.ops.activation.glu import Glu
from tessera.ops.operation import library_op
from tessera.ops.refusals import checked


@library_op
class SwiGlu(Glu):
    """SwiGLU: a gate activated by SiLU times another array. `__call__` says what it takes."""

    act = "silu"

    @checked
    def __call__(self, gate: Any, up: Any = None, *, out: Any = None) -> Any:
        """Return `silu(gate) * up`.

        Args:
            gate: `(..., N)`, f64, f32, bf16 or f16; without `up` `(..., 2 N)`: the gate, then `up`.
            up: as `gate`, or None.
            out: array for the result.

        Returns:
            An array `(..., N)` of the dtype of `gate`. PyTorch tensors that need gradients have them.

        Raises:
            CallError: `not-an-array`, `wrong-shape`, `wrong-dtype`, or `out-needs-no-gradient`.

        Numerics:
            Computed in f32 (f64 for f64), and rounded once.

        Source: Shazeer, GLU variants improve transformer, 2020.
        """
        return self.run(self.act, gate, up, out)

    def backward(self, grad: Any, gate: Any, up: Any = None) -> dict[str, Any]:
        """Return the gradients of a call by the names of its arguments; the gate is activated again.

        Args:
            grad: gradient of the result.
            gate: as in the call.
            up: as in the call.

        Raises:
            CallError: as for the call.
        """
        return self.gradients(self.act, grad, gate, up)

    def reference(self, gate: Any, up: Any = None) -> Any:
        """Return the exact result in NumPy and float64."""
        return self.exact(self.act, gate, up)


swiglu = SwiGlu()
"""SwiGLU: a gate activated by SiLU times another array. See `SwiGlu.__call__`."""
