"""Element types of the IRs and their Tessera dtypes.

Floats and integers are xDSL's builtin types (unsigned ones are `ui8` …); the narrow floats that builtin lacks
are `!tessera_tile.narrow<fp8_e4m3>`. `tf32` never is an element type: it is f32 storage with a compute mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdsl.dialects.builtin import (
    BFloat16Type,
    Float16Type,
    Float32Type,
    Float64Type,
    IndexType,
    IntAttr,
    IntegerType,
    Signedness,
    StringAttr,
)
from xdsl.ir import Attribute, ParametrizedAttribute, TypeAttribute
from xdsl.irdl import irdl_attr_definition, param_def
from xdsl.parser import AttrParser
from xdsl.printer import Printer

from tessera.numerics import dtypes
from tessera.numerics.dtypes import DType


@irdl_attr_definition
class NarrowFloatType(ParametrizedAttribute, TypeAttribute):
    """A float of at most 8 bits that builtin has no name for."""

    name = "tessera_tile.narrow"
    dtype_name: StringAttr = param_def()

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        """Parse `<fp8_e4m3>`."""
        with parser.in_angle_brackets():
            return [StringAttr(parser.parse_identifier())]

    def print_parameters(self, printer: Printer) -> None:
        """Print `<fp8_e4m3>`."""
        with printer.in_angle_brackets():
            printer.print_string(self.dtype_name.data)

    def verify(self) -> None:
        """Check that the name is a Tessera float of at most 8 bits."""
        from xdsl.utils.exceptions import VerifyException

        known = dtypes.BY_NAME.get(self.dtype_name.data)
        if known is None or not known.is_float or known.bits > 8:
            raise VerifyException(f"{self.dtype_name.data} is not a narrow float")


index = IndexType()
i1 = IntegerType(1)

_FLOATS: dict[str, Any] = {
    "f64": Float64Type(),
    "f32": Float32Type(),
    "f16": Float16Type(),
    "bf16": BFloat16Type(),
}


def element_type(dtype: DType) -> Attribute:
    """Return the IR type of one element of `dtype` (its storage type)."""
    dtype = dtype.storage
    if dtype.name in _FLOATS:
        return _FLOATS[dtype.name]
    if dtype.is_float:
        return NarrowFloatType(StringAttr(dtype.name))
    if dtype.kind == "bool":
        return i1
    signedness = Signedness.UNSIGNED if dtype.kind == "uint" else Signedness.SIGNLESS
    return IntegerType(dtype.bits, signedness)


_BY_TYPE: dict[Attribute, DType] = {element_type(d): d for d in dtypes.ALL if d.name != "tf32"}


def dtype_of(element: Attribute) -> DType:
    """Return the Tessera dtype of an element type; `index` counts as i64.

    Raises:
        TypeError: for an attribute that is not an element type.
    """
    if isinstance(element, IndexType):
        return dtypes.i64
    found = _BY_TYPE.get(element)
    if found is None:
        raise TypeError(f"{element} is not an element type")
    return found


def int_value(attr: Attribute | None) -> int | None:
    """Return the number an integer attribute holds, None for anything else."""
    return attr.data if isinstance(attr, IntAttr) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def is_scalar(type_: Attribute) -> bool:
    """Return whether `type_` is a scalar (element type or index)."""
    return isinstance(type_, IndexType) or type_ in _BY_TYPE
