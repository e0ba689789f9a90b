"""Ops' assembly formats: read at first use, and all of them right."""

from __future__ import annotations

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin
from xdsl.irdl import IRDLOperation
from xdsl.irdl.declarative_assembly_format import FormatProgram
from xdsl.parser import Parser
from xdsl.utils.exceptions import ParseError

from tessera.ir.definitions import op_definition
from tessera.ir.target import target_dialect
from tessera.ir.tile import tile_dialect

FORMATTED = [
    op
    for dialect in (tile_dialect(), target_dialect())
    for op in dialect.operations
    if issubclass(op, IRDLOperation) and op.get_irdl_definition().assembly_format is not None
]


@pytest.mark.parametrize("op", FORMATTED, ids=lambda op: op.name)
def test_every_format_is_right(op: type[IRDLOperation]) -> None:
    definition = op.get_irdl_definition()
    assert definition.assembly_format is not None
    assert FormatProgram.from_str(definition.assembly_format, definition).stmts


def test_a_format_is_read_when_the_op_is() -> None:
    @op_definition
    class Wrong(IRDLOperation):
        name = "test.wrong"
        assembly_format = "$nothing attr-dict"

    context = Context()
    context.load_dialect(Builtin)
    context.load_op(Wrong)
    with pytest.raises(ParseError, match="nothing"):
        Parser(context, "test.wrong").parse_op()
