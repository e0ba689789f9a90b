"""What has no adjoint: the error, with the line and what can be done."""

from __future__ import annotations

from xdsl.ir import Operation

from tessera.data import dataclass
from tessera.errors import LanguageError
from tessera.ir.locations import location_of


@dataclass(frozen=True, slots=True)
class Asked:
    """What is differentiated by what, for messages.

    Args:
        kernel: the kernel's name.
        outputs: the tensors whose cotangents are given.
        inputs: the tensors whose gradients are asked for.
    """

    kernel: str
    outputs: tuple[str, ...]
    inputs: tuple[str, ...]

    def refused(self, op: Operation, what: str) -> LanguageError:
        """Return the error for an op that has no adjoint.

        Args:
            op: the op of the kernel.
            what: it, or what about it has none.
        """
        outputs, inputs = ", ".join(self.outputs), ", ".join(self.inputs)
        return LanguageError(
            f"{what} has no adjoint (gradient of {outputs} by {inputs})",
            code="no-adjoint",
            location=location_of(op),
            help=f"give one with @{self.kernel}.vjp, or ts.stop_gradient({self.inputs[0] if self.inputs else 'x'})",
        )
