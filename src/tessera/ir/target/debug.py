"""Device print and assert of TIR-T."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    operand_def,
    opt_operand_def,
    prop_def,
    traits_def,
    var_operand_def,
)
from xdsl.utils.exceptions import VerifyException

from tessera.ir.assembly import ActingAssembly
from tessera.ir.definitions import TesseraOp, op_definition
from tessera.ir.effects import Effect, effect
from tessera.ir.target.types import FragmentType


@op_definition
class PrintOp(TesseraOp):
    """Prints `format` with one operand per `{}`.

    Fragments, all of one layout, print a line for each element they hold, where `mask` is true if there is one.
    """

    name = "tessera_target.print"
    format = prop_def(StringAttr)
    args = var_operand_def()
    mask = opt_operand_def()
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(*effect(Effect.IO))
    assembly_format = "$format (`,` $args^ `:` type($args))? (`mask` $mask^ `:` type($mask))? attr-dict"

    def __init__(self, format: str, args: Sequence[SSAValue], mask: SSAValue | None = None):
        super().__init__(operands=[list(args), mask], properties={"format": StringAttr(format)})

    def verify_(self) -> None:
        """Check that there is one placeholder per operand, and that fragments have one layout."""
        if self.format.data.count("{}") != len(self.args):
            raise VerifyException("a print has one {} per operand")
        values = [*self.args, *([self.mask] if self.mask is not None else [])]
        if len({value.type.layout for value in values if isinstance(value.type, FragmentType)}) > 1:
            raise VerifyException("the fragments of a print have one layout")


@op_definition
class AssertOp(TesseraOp):
    """Stops the launch with `message` when `condition` is false anywhere."""

    name = "tessera_target.assert"
    condition = operand_def()
    message = prop_def(StringAttr)
    traits = traits_def(*effect(Effect.IO))
    assembly_format = "$condition `,` $message attr-dict `:` type($condition)"

    def __init__(self, condition: SSAValue, message: str):
        super().__init__(operands=[condition], properties={"message": StringAttr(message)})


@op_definition
class AssemblyOp(ActingAssembly):
    """Runs inline assembly for what it does."""

    name = "tessera_target.assembly"
