"""Elementwise arithmetic on tiles and scalars, constants, casts and splats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdsl.dialects.builtin import FloatAttr, IntegerAttr, StringAttr, UnitAttr
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import ConstantLike
from xdsl.utils.exceptions import VerifyException

from tessera.ir.attributes import integer, text
from tessera.ir.definitions import TesseraOp, op_definition
from tessera.ir.effects import PURE
from tessera.ir.formats import parse_number, print_number
from tessera.ir.tile.types import TileType, describe, element_of, shape_of, with_element
from tessera.ir.types import dtype_of, i1, is_scalar
from tessera.numerics.assembly import is_assembly
from tessera.numerics.functions import accepts, function_named, record_of


@op_definition
class ConstantOp(TesseraOp):
    """A scalar constant: index, bool, integer or f16/bf16/f32/f64."""

    name = "tessera_tile.constant"
    value = prop_def(IntegerAttr | FloatAttr)
    result = result_def()
    traits = traits_def(*PURE, ConstantLike())

    def __init__(self, value: int | float | bool, type_: Attribute):
        float_attr: Any = FloatAttr  # its stub allows fewer types than it does
        attr = float_attr(float(value), type_) if dtype_of(type_).is_float else integer(int(value), type_)
        super().__init__(properties={"value": attr}, result_types=[type_])

    @classmethod
    def parse(cls, parser: Parser) -> ConstantOp:
        """Parse `4 : index`, `true` or `0.5 : f32`."""
        value, attributes = parse_number(parser)
        return cls.create(properties={"value": value}, attributes=attributes, result_types=[value.type])

    def print(self, printer: Printer) -> None:
        """Print `4 : index`, `true` or `0.5 : f32`."""
        print_number(printer, self.value, self.attributes)

    @property
    def python_value(self) -> int | float:
        """The constant as a Python number; `true` is 1."""
        number = self.value.value.data
        return abs(number) if self.result.type == i1 else number

    def verify_(self) -> None:
        """Check that the value has the result's type."""
        if not is_scalar(self.result.type) or self.value.type != self.result.type:
            raise VerifyException(f"constant of type {self.value.type} cannot be {self.result.type}")


def constant_value(value: SSAValue) -> int | float | None:
    """Return the Python number a scalar is known to be, or None."""
    return value.owner.python_value if isinstance(value.owner, ConstantOp) else None


@op_definition
class ElementwiseOp(TesseraOp):
    """Applies a function of `numerics.functions` to scalars or to tiles of one shape."""

    name = "tessera_tile.elementwise"
    fn = prop_def(StringAttr)
    args = var_operand_def()
    result = result_def()
    traits = traits_def(*PURE)
    assembly_format = "$fn `(` $args `)` attr-dict `:` `(` type($args) `)` `->` type($result)"

    def __init__(self, fn: str, args: Sequence[SSAValue]):
        last = args[-1].type
        result = with_element(last, i1) if record_of(fn).result == "bool" else last
        super().__init__(operands=[list(args)], properties={"fn": text(fn)}, result_types=[result])

    def verify_(self) -> None:
        """Check arity, that operands agree in shape and dtype, and the domain."""
        function = function_named(self.fn.data)
        if function is None:
            raise VerifyException(f"no elementwise function is called {self.fn.data}")
        if is_assembly(self.fn.data):
            if len({shape_of(arg.type) for arg in self.args}) != 1 or self.result.type != self.args[-1].type:
                raise VerifyException("operands of assembly have one shape, and its result is like the last of them")
            return
        if len(self.args) != function.arity:
            raise VerifyException(f"{function.name} takes {function.arity} operands, got {len(self.args)}")
        types = [arg.type for arg in self.args]
        if function.name == "select":
            if element_of(types[0]) != i1 or shape_of(types[0]) != shape_of(types[1]):
                raise VerifyException("select takes a bool condition of the operands' shape")
            types = types[1:]
        if any(t != types[0] for t in types):
            raise VerifyException(f"{function.name}: operands differ: {', '.join(describe(t) for t in types)}")
        if not accepts(function, dtype_of(element_of(types[0])).kind):
            raise VerifyException(f"{function.name} is not defined for {describe(types[0])}")
        if function.bits not in (None, dtype_of(element_of(types[0])).bits):
            raise VerifyException(f"{function.name} takes integers of {function.bits} bits, not {describe(types[0])}")
        expected = with_element(types[0], i1) if function.result == "bool" else types[0]
        if self.result.type != expected:
            raise VerifyException(f"{function.name} gives {describe(expected)}, not {describe(self.result.type)}")


@op_definition
class CastOp(TesseraOp):
    """Converts the dtype of a tile or scalar.

    Float to float rounds to nearest even, and `saturate` clamps to the largest finite value instead of
    overflowing. Float to integer truncates: out of range it gives the nearest bound, NaN gives 0.
    """

    name = "tessera_tile.cast"
    source = operand_def()
    saturate = opt_prop_def(UnitAttr)
    result = result_def()
    traits = traits_def(*PURE)
    assembly_format = "$source (`saturate` $saturate^)? attr-dict `:` type($source) `->` type($result)"

    def __init__(self, source: SSAValue, element: Attribute, saturate: bool = False):
        super().__init__(
            operands=[source],
            properties={"saturate": UnitAttr() if saturate else None},
            result_types=[with_element(source.type, element)],
        )

    def verify_(self) -> None:
        """Check that only the element type changes."""
        if shape_of(self.source.type) != shape_of(self.result.type):
            raise VerifyException("a cast keeps the shape")


@op_definition
class BitcastOp(TesseraOp):
    """Takes the bits of a tile or scalar for another dtype of the same width."""

    name = "tessera_tile.bitcast"
    source = operand_def()
    result = result_def()
    traits = traits_def(*PURE)
    assembly_format = "$source attr-dict `:` type($source) `->` type($result)"

    def __init__(self, source: SSAValue, element: Attribute):
        super().__init__(operands=[source], result_types=[with_element(source.type, element)])

    def verify_(self) -> None:
        """Check that shape and width stay, and that both dtypes fill their bytes."""
        if shape_of(self.source.type) != shape_of(self.result.type):
            raise VerifyException("a bitcast keeps the shape")
        widths = [dtype_of(element_of(value.type)).bits for value in (self.source, self.result)]
        if widths[0] != widths[1] or widths[0] % 8:
            raise VerifyException(f"bitcast of {describe(self.source.type)} to {describe(self.result.type)}")


@op_definition
class RoundTf32Op(TesseraOp):
    """Rounds f32 values to tf32's 10 bits of mantissa, to nearest even; they stay f32."""

    name = "tessera_tile.round_tf32"
    source = operand_def(TileType)
    result = result_def(TileType)
    traits = traits_def(*PURE)
    assembly_format = "$source attr-dict `:` type($source) `->` type($result)"

    def __init__(self, source: SSAValue):
        super().__init__(operands=[source], result_types=[source.type])

    def verify_(self) -> None:
        """Check that the tile is of f32 and stays what it is."""
        if dtype_of(element_of(self.source.type)).name != "f32":
            raise VerifyException(f"round_tf32 takes f32, got {describe(self.source.type)}")
        if self.result.type != self.source.type:
            raise VerifyException("round_tf32 keeps the type")


@op_definition
class SplatOp(TesseraOp):
    """A tile whose elements all are one scalar."""

    name = "tessera_tile.splat"
    value = operand_def()
    result = result_def(TileType)
    traits = traits_def(*PURE)
    assembly_format = "$value attr-dict `:` type($value) `->` type($result)"

    def __init__(self, value: SSAValue, shape: Sequence[int]):
        super().__init__(operands=[value], result_types=[TileType.of(shape, value.type)])

    def verify_(self) -> None:
        """Check that the scalar is the tile's element."""
        if element_of(self.result.type) != self.value.type:
            raise VerifyException(f"splat of {describe(self.value.type)} cannot be {describe(self.result.type)}")


def is_zero(value: SSAValue) -> bool:
    """Return whether a tile is known to be zero everywhere."""
    return isinstance(value.owner, SplatOp) and constant_value(value.owner.value) == 0


@op_definition
class ArangeOp(TesseraOp):
    """The tile `0, 1, …, n - 1` of an integer type or index."""

    name = "tessera_tile.arange"
    result = result_def(TileType)
    traits = traits_def(*PURE)
    assembly_format = "attr-dict `:` type($result)"

    def __init__(self, size: int, element: Attribute):
        super().__init__(result_types=[TileType.of([size], element)])

    def verify_(self) -> None:
        """Check that the tile is one-dimensional and integer."""
        if self.result.type.rank != 1 or not self.result.type.dtype.is_int:  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
            raise VerifyException("arange gives a one-dimensional integer tile")
