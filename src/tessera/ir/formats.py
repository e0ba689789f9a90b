"""Pieces of the textual form that several dialects share, for xDSL's `assembly_format`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from xdsl.dialects.builtin import ArrayAttr, FloatAttr, IntAttr, IntegerAttr, StringAttr
from xdsl.ir import Attribute
from xdsl.irdl import IRDLOperation
from xdsl.irdl.declarative_assembly_format import (
    AttributeVariable,
    CustomDirective,
    ParsingState,
    PrintingState,
    irdl_custom_directive,
)
from xdsl.parser import Parser
from xdsl.printer import Printer

from tessera.ir.attributes import ints


@irdl_custom_directive
class Int(CustomDirective):
    """`custom<Int>($axis)`: an `IntAttr` as a plain number; may anchor a group, absent when there is none."""

    value: AttributeVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        """Parse `3`."""
        self.value.set(state, IntAttr(parser.parse_integer(allow_boolean=False)))

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        """Print `3`."""
        state.print_whitespace(printer)
        printer.print_string(str(cast(IntAttr, self.value.get(op)).data))
        state.should_emit_space = True

    def set_empty(self, state: ParsingState) -> None:
        """Leave the number out where the group is absent."""

    def is_present(self, op: IRDLOperation) -> bool:
        """Return whether there is a number."""
        return self.value.get(op) is not None

    def is_anchorable(self) -> bool:
        """Return that it may decide whether an optional group is there."""
        return True


@irdl_custom_directive
class Count(CustomDirective):
    """`custom<Count>($groups)`: an `IntAttr` as a plain number; may anchor a group, absent when it is 1."""

    value: AttributeVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        """Parse `2`."""
        self.value.set(state, IntAttr(parser.parse_integer(allow_boolean=False)))

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        """Print `2`."""
        state.print_whitespace(printer)
        printer.print_string(str(cast(IntAttr, self.value.get(op)).data))
        state.should_emit_space = True

    def set_empty(self, state: ParsingState) -> None:
        """Stand for 1 where the group is absent."""
        self.value.set(state, IntAttr(1))

    def is_present(self, op: IRDLOperation) -> bool:
        """Return whether there are several."""
        return cast(IntAttr, self.value.get(op)).data != 1

    def is_anchorable(self) -> bool:
        """Return that it may decide whether an optional group is there."""
        return True


@irdl_custom_directive
class Ints(CustomDirective):
    """`custom<Ints>($sizes)`: an array of `IntAttr` as `[64, 32]`; may anchor a group, absent when empty."""

    value: AttributeVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        """Parse `[64, 32]`."""
        numbers = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_integer)
        self.value.set(state, ints(numbers))

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        """Print `[64, 32]`."""
        state.print_whitespace(printer)
        printer.print_string(f"[{', '.join(str(number) for number in self._numbers(op))}]")
        state.should_emit_space = True

    def _numbers(self, op: IRDLOperation) -> list[int]:
        attr: Any = self.value.get(op)
        return [number.data for number in attr.data]

    def set_empty(self, state: ParsingState) -> None:
        """Stand for `[]` where the group is absent."""
        self.value.set(state, ArrayAttr[IntAttr]([]))

    def is_present(self, op: IRDLOperation) -> bool:
        """Return whether there are numbers."""
        return bool(self._numbers(op))

    def is_anchorable(self) -> bool:
        """Return that it may decide whether an optional group is there."""
        return True


@irdl_custom_directive
class Names(CustomDirective):
    """`custom<Names>($fns)`: an array of `StringAttr` as `["add", "xor"]`; may anchor a group, absent when empty."""

    value: AttributeVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        """Parse `["add", "xor"]`."""
        names = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_str_literal)
        self.value.set(state, ArrayAttr([StringAttr(name) for name in names]))

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        """Print `["add", "xor"]`."""
        state.print_whitespace(printer)
        printer.print_attribute(cast(Attribute, self.value.get(op)))
        state.should_emit_space = True

    def set_empty(self, state: ParsingState) -> None:
        """Stand for `[]` where the group is absent."""
        self.value.set(state, ArrayAttr[StringAttr]([]))

    def is_present(self, op: IRDLOperation) -> bool:
        """Return whether there are names."""
        attr: Any = self.value.get(op)
        return bool(attr.data)

    def is_anchorable(self) -> bool:
        """Return that it may decide whether an optional group is there."""
        return True


Number = IntegerAttr[Any] | FloatAttr[Any]


def parse_number(parser: Parser) -> tuple[Number, dict[str, Attribute]]:
    """Parse a constant's `4 : index`, `true` or `0.5 : f32`, and the op's other attributes."""
    position = parser.pos
    value = parser.parse_attribute()
    if not isinstance(value, IntegerAttr | FloatAttr):
        parser.raise_error("a constant is a number with its type", position)
    return cast("Number", value), dict(parser.parse_optional_attr_dict())


def print_number(printer: Printer, value: Attribute, attributes: Mapping[str, Attribute]) -> None:
    """Print what `parse_number` reads."""
    printer.print_string(" ")
    printer.print_attribute(value)
    if attributes:
        printer.print_op_attributes(dict(attributes))
