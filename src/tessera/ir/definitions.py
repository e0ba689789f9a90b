"""Defines ops as xDSL does, but reads their assembly formats when an op is first read or printed.

A compilation that keeps no dump reads and prints nothing, and the formats of a hundred ops take as long to read as a
small kernel to compile.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, TypeVar

from xdsl.irdl import IRDLOperation, irdl_op_definition

if TYPE_CHECKING:
    from xdsl.irdl.declarative_assembly_format import FormatProgram
    from xdsl.parser import Parser
    from xdsl.printer import Printer

Op = TypeVar("Op", bound=IRDLOperation)


def op_definition(cls: type[Op]) -> type[Op]:
    """Define an op by its class; use it as a decorator, in place of `irdl_op_definition`.

    Args:
        cls: the class, with its operands, results, attributes, and perhaps an `assembly_format`, as xDSL wants them. A
            mistake in the format is reported when it is first used, by `ParseError`.

    Returns:
        The class.
    """
    text = cls.__dict__.get("assembly_format")
    if text is None:
        return irdl_op_definition(cls)
    del cls.assembly_format  # else the format is read now
    irdl_op_definition(cls)
    cls.assembly_format = text
    definition = cls.get_irdl_definition()
    definition.assembly_format = text

    @cache
    def program() -> FormatProgram:
        from xdsl.irdl.declarative_assembly_format import FormatProgram

        return FormatProgram.from_str(text, definition)

    def parse(cls: type[Op], parser: Parser) -> Op:
        return program().parse(parser, cls)

    def print_(self: Op, printer: Printer) -> None:
        program().print(printer, self)

    setattr(cls, "parse", classmethod(parse))  # noqa: B010 - pyright knows no assignment to a method
    setattr(cls, "print", print_)  # noqa: B010
    return cls
