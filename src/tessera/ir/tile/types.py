"""Types of TIR-H: tensor views, tiles and shared buffers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from xdsl.dialects.builtin import DYNAMIC_INDEX, ArrayAttr, IntAttr, StringAttr
from xdsl.ir import Attribute, ParametrizedAttribute, TypeAttribute
from xdsl.irdl import irdl_attr_definition, param_def
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from tessera.ir.attributes import ints
from tessera.ir.types import dtype_of, is_scalar
from tessera.numerics.dtypes import DType

DYNAMIC = -1


def _print_shape(printer: Printer, dims: Sequence[int], element: Attribute) -> None:
    for dim in dims:
        printer.print_string("?x" if dim == DYNAMIC else f"{dim}x")
    printer.print_attribute(element)


class _Shaped(ParametrizedAttribute, TypeAttribute):
    """Common part of the shaped types: `<64x32xbf16>`."""

    dims: Any
    element: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each dimension."""
        return tuple([dim.data for dim in self.dims.data])

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.dims.data)

    @property
    def dtype(self) -> DType:
        """The Tessera dtype of the elements."""
        return dtype_of(self.element)

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        """Parse `<64x32xbf16>`."""
        with parser.in_angle_brackets():
            dims, element = parser.parse_ranked_shape()
            return [ints([DYNAMIC if dim == DYNAMIC_INDEX else dim for dim in dims]), element]

    def print_parameters(self, printer: Printer) -> None:
        """Print `<64x32xbf16>`."""
        with printer.in_angle_brackets():
            _print_shape(printer, self.shape, self.element)

    def verify(self) -> None:
        """Check the element type and that sizes are not negative."""
        if not is_scalar(self.element):
            raise VerifyException(f"{self.element} is not an element type")
        if any(dim < 0 and dim != DYNAMIC for dim in self.shape):
            raise VerifyException(f"dimensions must not be negative, got {self.shape}")


@irdl_attr_definition
class TensorType(_Shaped):
    """A view of an array in global memory; `?` marks a size known at run time."""

    name = "tessera_tile.tensor"
    dims: ArrayAttr[IntAttr] = param_def()
    element: Attribute = param_def()

    @classmethod
    def of(cls, shape: Sequence[int], element: Attribute) -> TensorType:
        """Make the type from plain sizes (`DYNAMIC` for run-time ones)."""
        return cls(ints(shape), element)


@irdl_attr_definition
class TileType(_Shaped):
    """An immutable value of static shape, held by the whole group."""

    name = "tessera_tile.tile"
    dims: ArrayAttr[IntAttr] = param_def()
    element: Attribute = param_def()

    @classmethod
    def of(cls, shape: Sequence[int], element: Attribute) -> TileType:
        """Make the type from plain sizes."""
        return _tile(tuple(shape), element)

    def verify(self) -> None:
        """Check that the shape is static and that there are elements."""
        super().verify()
        if 0 in self.shape:
            raise VerifyException(f"a tile has elements, got the shape {self.shape}")
        if DYNAMIC in self.shape:
            raise VerifyException("a tile's shape is static")
        if not self.shape:
            raise VerifyException("a tile has at least one dimension; use a scalar")


@irdl_attr_definition
class SharedType(ParametrizedAttribute, TypeAttribute):
    """A buffer in the group's shared memory, or a view of one.

    `perm` says which stored axis each logical axis is (`[1, 0]` for a transposed view).
    """

    name = "tessera_tile.shared"
    dims: ArrayAttr[IntAttr] = param_def()
    element: Attribute = param_def()
    swizzle: StringAttr = param_def()
    perm: ArrayAttr[IntAttr] = param_def()

    @classmethod
    def of(
        cls,
        shape: Sequence[int],
        element: Attribute,
        swizzle: str = "none",
        perm: Sequence[int] | None = None,
    ) -> SharedType:
        """Make the type from plain values; `perm` defaults to the stored order."""
        return cls(ints(shape), element, StringAttr(swizzle), ints(perm or range(len(shape))))

    @property
    def shape(self) -> tuple[int, ...]:
        """The logical size of each dimension."""
        return tuple([dim.data for dim in self.dims.data])

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.dims.data)

    @property
    def permutation(self) -> tuple[int, ...]:
        """The stored axis of each logical axis."""
        return tuple(axis.data for axis in self.perm.data)

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The sizes in stored order."""
        stored = [0] * self.rank
        for size, axis in zip(self.shape, self.permutation, strict=True):
            stored[axis] = size
        return tuple(stored)

    @property
    def dtype(self) -> DType:
        """The Tessera dtype of the elements."""
        return dtype_of(self.element)

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        """Parse `<64x32xbf16, "xor", [0, 1]>`."""
        with parser.in_angle_brackets():
            dims, element = parser.parse_ranked_shape()
            parser.parse_punctuation(",")
            swizzle = parser.parse_str_literal()
            parser.parse_punctuation(",")
            perm = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_integer)
            return [ints(dims), element, StringAttr(swizzle), ints(perm)]

    def print_parameters(self, printer: Printer) -> None:
        """Print `<64x32xbf16, "xor", [0, 1]>`."""
        with printer.in_angle_brackets():
            _print_shape(printer, self.shape, self.element)
            order = ", ".join(str(axis) for axis in self.permutation)
            printer.print_string(f', "{self.swizzle.data}", [{order}]')

    def verify(self) -> None:
        """Check shape, swizzle name and permutation."""
        if any(dim < 1 for dim in self.shape):
            raise VerifyException("a shared buffer's shape is static and positive")
        if self.swizzle.data not in ("none", "xor", "panels"):
            raise VerifyException(f'swizzle is "none", "xor" or "panels", got "{self.swizzle.data}"')
        if sorted(self.permutation) != list(range(self.rank)):
            raise VerifyException(f"{self.permutation} is not a permutation of {self.rank} axes")


@lru_cache(maxsize=1024)
def _tile(shape: tuple[int, ...], element: Attribute) -> TileType:
    return TileType(ints(shape), element)


_SHAPED = frozenset[type[Attribute]]({TileType, SharedType, TensorType})


def shape_of(type_: Attribute) -> tuple[int, ...]:
    """Return the shape of a tile or shared type, `()` for a scalar."""
    shaped: Any = type_
    return shaped.shape if type(type_) in _SHAPED else ()


def element_of(type_: Attribute) -> Attribute:
    """Return the element type of a shaped type, or the scalar type itself."""
    shaped: Any = type_
    return shaped.element if type(type_) in _SHAPED else type_


def with_element(type_: Attribute, element: Attribute) -> Attribute:
    """Return `type_` with another element type."""
    return TileType.of(type_.shape, element) if type(type_) is TileType else element


def describe(type_: Attribute) -> str:
    """Return the type as diagnostics show it: `tile<64x32xbf16>`, `f32`."""
    if isinstance(type_, TileType | SharedType | TensorType):
        sizes = "x".join("?" if dim == DYNAMIC else str(dim) for dim in type_.shape)
        return f"{type_.name.rsplit('.', 1)[-1]}<{sizes}x{type_.dtype}>"
    return "index" if str(type_) == "index" else str(dtype_of(type_))
