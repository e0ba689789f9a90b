"""Element types of the IRs and their Tessera dtypes.

Floats and integers are xDSL's builtin types (unsigned ones are `ui8` …); the narrow floats that builtin lacks
are `!tessera_tile.narrow<fp8_e4m3>`. `tf32` never is an element type: it is f32 storage with a compute mode.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import (
    IndexType,
    IntAttr,
    IntegerType,
    Signedness,
    StringAttr,
    bf16,
    f16,
    f32,
    f64,
    i1,
    i8,
    i16,
    i32,
    i64,
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

_FLOATS: dict[str, Attribute] = {"f64": f64, "f32": f32, "f16": f16, "bf16": bf16}
_INTEGERS: dict[int, Attribute] = {8: i8, 16: i16, 32: i32, 64: i64}


def _type_of(dtype: DType) -> Attribute:
    match dtype.kind:
        case "float":
            return _FLOATS.get(dtype.name) or NarrowFloatType(StringAttr(dtype.name))
        case "bool":
            return i1
        case "uint":
            return IntegerType(dtype.bits, Signedness.UNSIGNED)
        case "int":
            return _INTEGERS[dtype.bits]


_BY_NAME: dict[str, Attribute] = {dtype.name: _type_of(dtype.storage) for dtype in dtypes.ALL}


def element_type(dtype: DType) -> Attribute:
    """Return the IR type of one element of `dtype` (its storage type)."""
    return _BY_NAME[dtype.name]


_BY_TYPE: dict[Attribute, DType] = {element_type(d): d for d in dtypes.ALL if d.name != "tf32"}
_BY_OBJECT: dict[int, DType] = {id(type_): dtype for type_, dtype in _BY_TYPE.items()} | {id(index): dtypes.i64}
"""By the identity of the objects that nearly all of the IR has, which is found without hashing their parts."""


def dtype_of(element: Attribute) -> DType:
    """Return the Tessera dtype of an element type; `index` counts as i64.

    Raises:
        TypeError: for an attribute that is not an element type.
    """
    found = _BY_OBJECT.get(id(element)) or _BY_TYPE.get(element)
    if found is not None:
        return found
    if isinstance(element, IndexType):
        return dtypes.i64
    raise TypeError(f"{element} is not an element type")


def int_value(attr: Attribute | None) -> int | None:
    """Return the number an integer attribute holds, None for anything else."""
    return attr.data if isinstance(attr, IntAttr) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def is_scalar(type_: Attribute) -> bool:
    """Return whether `type_` is a scalar (element type or index)."""
    return id(type_) in _BY_OBJECT or isinstance(type_, IndexType) or type_ in _BY_TYPE
