"""Arithmetic of TIR-T on scalars and fragments of one layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdsl.dialects.builtin import ArrayAttr, FloatAttr, IntAttr, IntegerAttr, StringAttr, UnitAttr
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import ConstantLike
from xdsl.utils.exceptions import VerifyException

from tessera.ir.attributes import integer, ints, text
from tessera.ir.definitions import TesseraOp, op_definition
from tessera.ir.effects import PURE
from tessera.ir.formats import Int, Ints, parse_number, print_number
from tessera.ir.layouts import LinearLayout
from tessera.ir.target.types import FragmentType, element_of, with_element
from tessera.ir.types import dtype_of, i1
from tessera.numerics.assembly import is_assembly
from tessera.numerics.functions import function_named, record_of


@op_definition
class ConstantOp(TesseraOp):
    """A scalar constant."""

    name = "tessera_target.constant"
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


def constant_value(value: SSAValue) -> int | float | None:
    """Return the Python number a scalar is known to be, or None."""
    return value.owner.python_value if isinstance(value.owner, ConstantOp) else None


@op_definition
class ElementwiseOp(TesseraOp):
    """Applies a function of `numerics.functions` to scalars or to fragments of one layout."""

    name = "tessera_target.elementwise"
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
        """Check arity and that operands agree."""
        function = function_named(self.fn.data)
        if is_assembly(self.fn.data):
            return
        if function is None or len(self.args) != function.arity:
            raise VerifyException(f"no elementwise function {self.fn.data} of {len(self.args)} operands")
        types = [arg.type for arg in self.args]
        types = types[1:] if function.name == "select" else types
        if any(t != types[0] for t in types):
            raise VerifyException(f"{function.name}: operands differ in type or layout")


@op_definition
class ScaleOp(TesseraOp):
    """Multiplies a fragment by factors, but for warps all of whose factors are one: they leave it as it is."""

    name = "tessera_target.scale"
    factors = operand_def(FragmentType)
    source = operand_def(FragmentType)
    result = result_def(FragmentType)
    traits = traits_def(*PURE)
    assembly_format = "$source `by` $factors attr-dict `:` type($source) `by` type($factors) `->` type($result)"

    def __init__(self, source: SSAValue, factors: SSAValue):
        super().__init__(operands=[factors, source], result_types=[source.type])

    def verify_(self) -> None:
        """Check that both are floats of one layout."""
        if not self.factors.type == self.source.type == self.result.type or not self.result.type.dtype.is_float:
            raise VerifyException("factors, source and result are floats of one layout")


@op_definition
class CastOp(TesseraOp):
    """Converts the dtype of a scalar or fragment, with the meaning of `tessera_tile.cast`."""

    name = "tessera_target.cast"
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


@op_definition
class BitcastOp(TesseraOp):
    """Takes the bits of a scalar or fragment for another dtype, with the meaning of `tessera_tile.bitcast`."""

    name = "tessera_target.bitcast"
    source = operand_def()
    result = result_def()
    traits = traits_def(*PURE)
    assembly_format = "$source attr-dict `:` type($source) `->` type($result)"

    def __init__(self, source: SSAValue, element: Attribute):
        super().__init__(operands=[source], result_types=[with_element(source.type, element)])

    def verify_(self) -> None:
        """Check that the width stays."""
        widths = [dtype_of(element_of(value.type)).bits for value in (self.source, self.result)]
        if widths[0] != widths[1]:
            raise VerifyException(f"a bitcast keeps the width, got {widths[0]} and {widths[1]} bits")


@op_definition
class RoundTf32Op(TesseraOp):
    """Rounds f32 values of a fragment, with the meaning of `tessera_tile.round_tf32`."""

    name = "tessera_target.round_tf32"
    source = operand_def(FragmentType)
    result = result_def(FragmentType)
    traits = traits_def(*PURE)
    assembly_format = "$source attr-dict `:` type($source) `->` type($result)"

    def __init__(self, source: SSAValue):
        super().__init__(operands=[source], result_types=[source.type])

    def verify_(self) -> None:
        """Check that the fragment stays what it is."""
        if self.result.type != self.source.type:
            raise VerifyException("round_tf32 keeps the type")


@op_definition
class SplatOp(TesseraOp):
    """A fragment whose elements all are one scalar."""

    name = "tessera_target.splat"
    value = operand_def()
    result = result_def(FragmentType)
    traits = traits_def(*PURE)
    assembly_format = "$value attr-dict `:` type($value) `->` type($result)"

    def __init__(self, value: SSAValue, layout: LinearLayout):
        super().__init__(operands=[value], result_types=[FragmentType.of(value.type, layout)])

    def verify_(self) -> None:
        """Check that the scalar is the fragment's element."""
        if element_of(self.result.type) != self.value.type:
            raise VerifyException("splat keeps the element type")


@op_definition
class IotaOp(TesseraOp):
    """A fragment that holds each element's own coordinate along `axis`."""

    name = "tessera_target.iota"
    axis = prop_def(IntAttr)
    result = result_def(FragmentType)
    traits = traits_def(*PURE)
    custom_directives = (Int,)
    assembly_format = "custom<Int>($axis) attr-dict `:` type($result)"

    def __init__(self, axis: int, element: Attribute, layout: LinearLayout):
        super().__init__(properties={"axis": IntAttr(axis)}, result_types=[FragmentType.of(element, layout)])


@op_definition
class RelayoutOp(TesseraOp):
    """Renames, repeats or drops registers within each thread; no data leaves a lane.

    `source_registers[r]` is the register of the source that result register `r` takes.
    """

    name = "tessera_target.relayout"
    source = operand_def(FragmentType)
    source_registers = prop_def(ArrayAttr[IntAttr])
    result = result_def(FragmentType)
    traits = traits_def(*PURE)
    custom_directives = (Ints,)
    assembly_format = "$source custom<Ints>($source_registers) attr-dict `:` type($source) `->` type($result)"

    def __init__(self, source: SSAValue, layout: LinearLayout, source_registers: Sequence[int]):
        super().__init__(
            operands=[source],
            properties={"source_registers": ints(source_registers)},
            result_types=[FragmentType.of(element_of(source.type), layout)],
        )


@op_definition
class TransposeChunksOp(TesseraOp):
    """Transposes a rectangle held in chunks: element j of operand i is element i of result j (vector model)."""

    name = "tessera_target.transpose_chunks"
    rows = var_operand_def(FragmentType)
    columns = var_result_def(FragmentType)
    traits = traits_def(*PURE)
    assembly_format = "$rows attr-dict `:` type($rows) `->` type($columns)"

    def __init__(self, rows: Sequence[SSAValue], column: Attribute):
        first = rows[0].type
        assert isinstance(first, FragmentType)
        super().__init__(operands=[list(rows)], result_types=[[column] * first.shape[0]])

    def verify_(self) -> None:
        """Check that there are as many chunks as the others have elements, a power of two, all of one type."""
        for chunks, others in ((self.rows, self.columns), (self.columns, self.rows)):
            types, number = {value.type for value in chunks}, len(others)
            first = chunks[0].type if chunks else None
            fits = isinstance(first, FragmentType) and first.shape == (number,) and number & (number - 1) == 0
            if len(types) != 1 or not fits:
                raise VerifyException("as many chunks of one type as the others have elements are needed, 2, 4, 8 …")
        if len({element_of(value.type) for value in (*self.rows, *self.columns)}) != 1:
            raise VerifyException("the dtype stays")


@op_definition
class HalvesOp(TesseraOp):
    """The first and the second half of a chunk; scalars where a half is one element (vector model)."""

    name = "tessera_target.halves"
    source = operand_def(FragmentType)
    first = result_def()
    second = result_def()
    traits = traits_def(*PURE)
    assembly_format = "$source attr-dict `:` type($source) `->` type($first) `,` type($second)"

    def __init__(self, source: SSAValue, half: Attribute):
        super().__init__(operands=[source], result_types=[half, half])

    def verify_(self) -> None:
        """Check that the halves have half of the elements."""
        type_ = self.source.type
        assert isinstance(type_, FragmentType)
        for half in (self.first.type, self.second.type):
            size = half.shape if isinstance(half, FragmentType) else (1,)
            if element_of(half) != type_.element or len(type_.shape) != 1 or type_.shape != (2 * size[0],):
                raise VerifyException(f"halves of {type_} are not of {half}")


@op_definition
class ExchangeLanesOp(TesseraOp):
    """What the two lanes of a pair hold, for both of them; `lane` and `lane ^ mask` are a pair.

    `lower` is what the lane without the lowest bit of `mask` holds, `upper` what the other one does.
    """

    name = "tessera_target.exchange_lanes"
    source = operand_def()
    mask = prop_def(IntAttr)
    lower = result_def()
    upper = result_def()
    traits = traits_def(*PURE)
    custom_directives = (Int,)
    assembly_format = "$source `mask` custom<Int>($mask) attr-dict `:` type($source) `->` type($lower) `,` type($upper)"

    def __init__(self, source: SSAValue, mask: int):
        super().__init__(operands=[source], properties={"mask": IntAttr(mask)}, result_types=[source.type, source.type])

    def verify_(self) -> None:
        """Check that both results are of the operand's type, and that lanes are paired with others."""
        if self.lower.type != self.source.type or self.upper.type != self.source.type or self.mask.data < 1:
            raise VerifyException("lanes are paired with others, and exchange what they hold")


@op_definition
class ReduceRegistersOp(TesseraOp):
    """Combines the registers of each thread that differ only along `axis`; lanes keep partial results.

    The result's layout has the axis removed, or is a scalar when it was the only one.
    """

    name = "tessera_target.reduce_registers"
    source = operand_def(FragmentType)
    axis = prop_def(IntAttr)
    fn = prop_def(StringAttr)
    result = result_def()
    traits = traits_def(*PURE)
    custom_directives = (Int,)
    assembly_format = "$fn $source `axis` custom<Int>($axis) attr-dict `:` type($source) `->` type($result)"

    def __init__(self, source: SSAValue, axis: int, fn: str, result: Attribute):
        super().__init__(
            operands=[source],
            properties={"axis": IntAttr(axis), "fn": StringAttr(fn)},
            result_types=[result],
        )


@op_definition
class ReduceLanesOp(TesseraOp):
    """One butterfly step: combines each lane's registers with those of lane `lane ^ mask`; both get the result."""

    name = "tessera_target.reduce_lanes"
    source = operand_def()
    mask = prop_def(IntAttr)
    fn = prop_def(StringAttr)
    result = result_def()
    traits = traits_def(*PURE)
    custom_directives = (Int,)
    assembly_format = "$fn $source `mask` custom<Int>($mask) attr-dict `:` type($source) `->` type($result)"

    def __init__(self, source: SSAValue, mask: int, fn: str):
        super().__init__(
            operands=[source],
            properties={"mask": IntAttr(mask), "fn": StringAttr(fn)},
            result_types=[source.type],
        )


@op_definition
class ExtractOp(TesseraOp):
    """The scalar that a fragment of rank 0 holds in every thread."""

    name = "tessera_target.extract"
    source = operand_def(FragmentType)
    result = result_def()
    traits = traits_def(*PURE)
    assembly_format = "$source attr-dict `:` type($source) `->` type($result)"

    def __init__(self, source: SSAValue):
        super().__init__(operands=[source], result_types=[element_of(source.type)])

    def verify_(self) -> None:
        """Check that the fragment has rank 0."""
        if not isinstance(self.source.type, FragmentType) or self.source.type.shape:
            raise VerifyException("only a fragment of rank 0 is a scalar")
