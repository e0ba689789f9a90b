"""Ops that compute each element from those at its place: functions, casts, and arrays that follow from places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from xdsl.dialects.builtin import FloatAttr, IntAttr, IntegerAttr, StringAttr, UnitAttr
from xdsl.ir import SSAValue
from xdsl.irdl import operand_def, opt_prop_def, prop_def, result_def, traits_def, var_operand_def
from xdsl.utils.exceptions import VerifyException

from tessera.ir.attributes import integer, number, text
from tessera.ir.definitions import TesseraOp, op_definition
from tessera.ir.effects import PURE
from tessera.ir.formats import Int
from tessera.ir.graph.types import ArrayType, array_type, dim_of
from tessera.ir.types import i1
from tessera.numerics import dtypes
from tessera.numerics.conversions import nearest
from tessera.numerics.dtypes import DType
from tessera.numerics.functions import FUNCTIONS, accepts
from tessera.target.dims import Dim


@op_definition
class MapOp(TesseraOp):
    """Applies a function of `numerics.functions` to arrays of one shape and, but for conditions, one dtype."""

    name = "tessera_graph.map"
    fn = prop_def(StringAttr)
    args = var_operand_def(ArrayType)
    result = result_def(ArrayType)
    traits = traits_def(*PURE)
    assembly_format = "$fn `(` $args `)` attr-dict `:` `(` type($args) `)` `->` type($result)"

    def __init__(self, fn: str, args: Sequence[SSAValue]):
        last = array_type(args[-1])
        dtype = dtypes.boolean if FUNCTIONS[fn].result == "bool" else last.dtype
        super().__init__(
            operands=[list(args)], properties={"fn": text(fn)}, result_types=[ArrayType.of(last.dims, dtype)]
        )

    def verify_(self) -> None:
        """Check arity, that operands agree in shape and dtype, and the domain."""
        function = FUNCTIONS.get(self.fn.data)
        if function is None:
            raise VerifyException(f"no elementwise function is called {self.fn.data}")
        types = [array_type(arg) for arg in self.args]
        if len(types) != function.arity:
            raise VerifyException(f"{function.name} takes {function.arity} operands, got {len(types)}")
        result = array_type(self.result)
        if any(type_.sizes != result.sizes for type_ in types):
            raise VerifyException(f"{function.name}: operands and result have one shape")
        values = types[1:] if function.name == "select" else types
        if function.name == "select" and types[0].element != i1:
            raise VerifyException("select takes a bool condition")
        if any(type_.element != values[0].element for type_ in values):
            raise VerifyException(f"{function.name}: operands differ in dtype")
        if not accepts(function, values[0].dtype.kind):
            raise VerifyException(f"{function.name} is not defined for {values[0].dtype}")
        if result.element != (i1 if function.result == "bool" else values[0].element):
            raise VerifyException(f"{function.name} does not give {result.dtype}")


@op_definition
class CastOp(TesseraOp):
    """Converts the dtype of an array, as `tessera_tile.cast` does.

    A `loose` one rounds the result of a function to a 16-bit float; kernels that go on computing with it may leave the
    rounding out.
    """

    name = "tessera_graph.cast"
    source = operand_def(ArrayType)
    loose = opt_prop_def(UnitAttr)
    result = result_def(ArrayType)
    traits = traits_def(*PURE)
    assembly_format = "$source (`loose` $loose^)? attr-dict `:` type($source) `->` type($result)"

    def __init__(self, source: SSAValue, dtype: DType, loose: bool = False):
        super().__init__(
            operands=[source],
            properties={"loose": UnitAttr() if loose else None},
            result_types=[ArrayType.of(array_type(source).dims, dtype)],
        )

    def verify_(self) -> None:
        """Check that the shape stays."""
        if array_type(self.source).sizes != array_type(self.result).sizes:
            raise VerifyException("a cast keeps the shape")


@op_definition
class FullOp(TesseraOp):
    """One number that is known when the graph is made, rounded to the result's dtype."""

    name = "tessera_graph.full"
    value = prop_def(IntegerAttr | FloatAttr)
    result = result_def(ArrayType)
    traits = traits_def(*PURE)
    assembly_format = "$value attr-dict `->` type($result)"

    def __init__(self, value: float, dtype: DType):
        type_ = ArrayType.of((), dtype)
        element, float_attr = type_.element, cast("Any", FloatAttr)  # its stub allows fewer types than it does
        attr = float_attr(nearest(value, dtype), element) if dtype.is_float else integer(int(value), element)
        super().__init__(properties={"value": attr}, result_types=[type_])

    def verify_(self) -> None:
        """Check that it is one number of the result's dtype."""
        type_ = array_type(self.result)
        if type_.rank or self.value.type != type_.element:
            raise VerifyException("full is one number of its dtype; broadcast it")

    @property
    def number(self) -> int | float:
        """The number; `true` is 1."""
        found = self.value.value.data
        return abs(found) if array_type(self.result).element == i1 else found


@op_definition
class SizeOp(TesseraOp):
    """A size as one number, computed when the graph is called."""

    name = "tessera_graph.size"
    size = prop_def(StringAttr)
    result = result_def(ArrayType)
    traits = traits_def(*PURE)
    assembly_format = "$size attr-dict `->` type($result)"

    def __init__(self, size: Dim, dtype: DType):
        super().__init__(properties={"size": text(str(size))}, result_types=[ArrayType.of((), dtype)])

    @property
    def dim(self) -> Dim:
        """The size."""
        return dim_of(self.size.data)


@op_definition
class IotaOp(TesseraOp):
    """The place of each element along a dimension, from 0 on."""

    name = "tessera_graph.iota"
    axis = prop_def(IntAttr)
    result = result_def(ArrayType)
    traits = traits_def(*PURE)
    custom_directives = (Int,)
    assembly_format = "custom<Int>($axis) attr-dict `->` type($result)"

    def __init__(self, dims: Sequence[Dim], axis: int, dtype: DType):
        super().__init__(properties={"axis": number(axis)}, result_types=[ArrayType.of(dims, dtype)])

    def verify_(self) -> None:
        """Check that the dimension exists and places are integers."""
        type_ = array_type(self.result)
        if not 0 <= self.axis.data < type_.rank or not type_.dtype.is_int:
            raise VerifyException("iota gives integers along one of its dimensions")
