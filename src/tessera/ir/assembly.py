"""What inline assembly that acts is in both dialects."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import SSAValue
from xdsl.irdl import prop_def, traits_def, var_operand_def
from xdsl.utils.exceptions import VerifyException

from tessera.ir.attributes import text
from tessera.ir.definitions import TesseraOp
from tessera.ir.effects import Effect, effect
from tessera.ir.types import is_scalar
from tessera.numerics.assembly import is_assembly


class ActingAssembly(TesseraOp):
    """Runs inline assembly (`numerics/assembly.py`) on scalars, for what it does."""

    fn = prop_def(StringAttr)
    args = var_operand_def()
    traits = traits_def(*effect(Effect.IO))
    assembly_format = "$fn `(` $args `)` attr-dict `:` `(` type($args) `)`"

    def __init__(self, fn: str, args: Sequence[SSAValue]):
        super().__init__(operands=[list(args)], properties={"fn": text(fn)})

    def verify_(self) -> None:
        """Check that it is assembly of scalars."""
        if not is_assembly(self.fn.data) or not all(is_scalar(arg.type) for arg in self.args):
            raise VerifyException("inline assembly for what it does is of scalars")
