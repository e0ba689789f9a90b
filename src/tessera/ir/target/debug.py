"""Device print and assert of TIR-T."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import SSAValue
from xdsl.irdl import IRDLOperation, irdl_op_definition, operand_def, prop_def, traits_def, var_operand_def

from tessera.ir.effects import Effect, effect


@irdl_op_definition
class PrintOp(IRDLOperation):
    """Prints `format` with one operand per `{}`; fragments of one layout print a line per element they hold."""

    name = "tessera_target.print"
    format = prop_def(StringAttr)
    args = var_operand_def()
    traits = traits_def(*effect(Effect.IO))
    assembly_format = "$format (`,` $args^ `:` type($args))? attr-dict"

    def __init__(self, format: str, args: Sequence[SSAValue]):
        super().__init__(operands=[list(args)], properties={"format": StringAttr(format)})


@irdl_op_definition
class AssertOp(IRDLOperation):
    """Stops the launch with `message` when `condition` is false anywhere."""

    name = "tessera_target.assert"
    condition = operand_def()
    message = prop_def(StringAttr)
    traits = traits_def(*effect(Effect.IO))
    assembly_format = "$condition `,` $message attr-dict `:` type($condition)"

    def __init__(self, condition: SSAValue, message: str):
        super().__init__(operands=[condition], properties={"message": StringAttr(message)})
