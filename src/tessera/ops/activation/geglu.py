"""GeGLU: a gate activated by GELU times another array."""

from __future__ import annotations

from typing import Any, Literal

from tessera.numerics.dtypes import DType, bf16
from tessera.ops.activation.glu import Glu
from tessera.ops.operation import library_op
from tessera.ops.refusals import checked
from tessera.target.artifact import Artifact

Approximate = Literal["none", "tanh"]


def _act(approximate: str) -> str:
    """Return the activation of a form of GELU."""
    return {"none": "gelu", "tanh": "gelu_tanh"}[approximate]


@library_op
class GeGlu(Glu):
    """GeGLU: a gate activated by GELU times another array. `__call__` says what it takes."""

    act = "gelu"

    @checked
    def __call__(self, gate: Any, up: Any = None, approximate: Approximate = "none", *, out: Any = None) -> Any:
        """Return `gelu(gate) * up`.

        Args:
            gate: `(..., N)`, f64, f32, bf16 or f16; without `up` `(..., 2 N)`: the gate, then `up`.
            up: as `gate`, or None.
            approximate: `tanh` for the formula with tanh, as in PyTorch.
            out: array for the result.

        Returns:
            An array `(..., N)` of the dtype of `gate`. PyTorch tensors that need gradients have them.

        Raises:
            CallError: `not-an-array`, `wrong-shape`, `wrong-dtype`, `bad-argument`, or `out-needs-no-gradient`.

        Numerics:
            Computed in f32 (f64 for f64), and rounded once.

        Source: Shazeer, GLU variants improve transformer, 2020.
        """
        return self.run(_act(approximate), gate, up, out)

    def backward(self, grad: Any, gate: Any, up: Any = None, approximate: Approximate = "none") -> dict[str, Any]:
        """Return the gradients of a call by the names of its arguments; the gate is activated again.

        Args:
            grad: gradient of the result.
            gate: as in the call.
            up: as in the call.
            approximate: as in the call.

        Raises:
            CallError: as for the call.
        """
        return self.gradients(_act(approximate), grad, gate, up)

    def reference(self, gate: Any, up: Any = None, approximate: Approximate = "none") -> Any:
        """Return the exact result in NumPy and float64."""
        return self.exact(_act(approximate), gate, up)

    def compile(
        self,
        width: int,
        dtype: DType = bf16,
        *,
        approximate: Approximate = "none",
        gradient: bool = False,
        target: str | None = None,
    ) -> Artifact:
        """Return a kernel for rows of a width; needs no device.

        Args:
            width: elements of a row of the result.
            dtype: dtype of the rows.
            approximate: as in a call.
            gradient: whether the kernel of the gradients is wanted.
            target: as for `ts.compile`.
        """
        return self.compiled(_act(approximate), width, dtype, gradient, target)


geglu = GeGlu()
"""GeGLU: a gate activated by GELU times another array. See `GeGlu.__call__`."""
