"""Device print and assert."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import SSAValue
from xdsl.irdl import operand_def, prop_def, traits_def, var_operand_def
from xdsl.utils.exceptions import VerifyException

from tessera.ir.assembly import ActingAssembly
from tessera.ir.definitions import TesseraOp, op_definition
from tessera.ir.effects import Effect, effect
from tessera.ir.tile.types import element_of, shape_of
from tessera.ir.types import i1


@op_definition
class PrintOp(TesseraOp):
    """Prints `format`, in which each `{}` stands for one operand; tiles, of one shape, print a line per element."""

    name = "tessera_tile.print"
    format = prop_def(StringAttr)
    args = var_operand_def()
    traits = traits_def(*effect(Effect.IO))
    assembly_format = "$format (`,` $args^ `:` type($args))? attr-dict"

    def __init__(self, format: str, args: Sequence[SSAValue]):
        super().__init__(operands=[list(args)], properties={"format": StringAttr(format)})

    def verify_(self) -> None:
        """Check that there is one placeholder per operand, and that tiles have one shape."""
        if self.format.data.count("{}") != len(self.args):
            raise VerifyException("a print has one {} per operand")
        if len({shape_of(arg.type) for arg in self.args} - {()}) > 1:
            raise VerifyException("the tiles of a print have one shape")


@op_definition
class AssertOp(TesseraOp):
    """Stops the kernel with `message` when `condition` (bool tile or scalar) is false anywhere."""

    name = "tessera_tile.assert"
    condition = operand_def()
    message = prop_def(StringAttr)
    traits = traits_def(*effect(Effect.IO))
    assembly_format = "$condition `,` $message attr-dict `:` type($condition)"

    def __init__(self, condition: SSAValue, message: str):
        super().__init__(operands=[condition], properties={"message": StringAttr(message)})

    def verify_(self) -> None:
        """Check that the condition is bool."""
        if element_of(self.condition.type) != i1:
            raise VerifyException("the condition is bool")


@op_definition
class AssemblyOp(ActingAssembly):
    """Runs inline assembly for what it does: each thread of a program, on GPUs."""

    name = "tessera_tile.assembly"
