"""Types of TIR-T: fragments with layouts, pointers and buffers in explicit memory spaces."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from xdsl.dialects.builtin import ArrayAttr, IntAttr, StringAttr
from xdsl.ir import Attribute, Data, ParametrizedAttribute, TypeAttribute
from xdsl.irdl import irdl_attr_definition, param_def
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from tessera.ir.attributes import ints, number, text
from tessera.ir.layouts import LayoutError, LinearLayout, axis_names, row_major, stacked, xor_swizzle
from tessera.ir.types import dtype_of, is_scalar
from tessera.numerics.dtypes import DType
from tessera.target.fragments import PANEL_BYTES

SWIZZLE_BYTES = 8 * PANEL_BYTES
"""After so many bytes the order of a panel's columns repeats; the engines tell it from the address."""

SPACES = ("register", "shared", "global", "peer", "host", "scratch", "param")


@irdl_attr_definition
class LayoutAttr(Data[LinearLayout]):
    """An F2-linear layout of a tile: `<register = [[0, 1]], lane = [[1, 0]], sizes = [2, 2]>`."""

    name = "tessera_target.layout"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> LinearLayout:
        """Parse the basis vectors of each input dimension and the sizes of the tile's axes."""
        bases: dict[str, list[list[int]]] = {}
        with parser.in_angle_brackets():
            while (name := parser.parse_identifier()) != "sizes":
                parser.parse_punctuation("=")
                bases[name] = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, lambda: _parse_ints(parser))
                parser.parse_punctuation(",")
            parser.parse_punctuation("=")
            sizes = _parse_ints(parser)
        try:
            return LinearLayout.make(bases, sizes)
        except LayoutError as error:
            parser.raise_error(str(error))

    def print_parameter(self, printer: Printer) -> None:
        """Print the basis vectors of each input dimension and the sizes of the tile's axes."""
        parts = [f"{name} = {[list(vector) for vector in vectors]}" for name, vectors in self.data.bases]
        printer.print_string(f"<{', '.join([*parts, f'sizes = {list(self.data.out_sizes)}'])}>")


def _parse_ints(parser: AttrParser) -> list[int]:
    return parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_integer)


class _Shaped(ParametrizedAttribute, TypeAttribute):
    dims: Any
    element: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each dimension."""
        return tuple([dim.data for dim in self.dims.data])

    @property
    def dtype(self) -> DType:
        """The Tessera dtype of the elements."""
        return dtype_of(self.element)

    def _print_shape(self, printer: Printer) -> None:
        printer.print_string("".join(f"{dim}x" for dim in self.shape))
        printer.print_attribute(self.element)


@irdl_attr_definition
class FragmentType(_Shaped):
    """A tile distributed over registers, lanes and warps by a layout; sizes are powers of two."""

    name = "tessera_target.fragment"
    dims: ArrayAttr[IntAttr] = param_def()
    element: Attribute = param_def()
    layout: LayoutAttr = param_def()

    @classmethod
    def of(cls, element: Attribute, layout: LinearLayout) -> FragmentType:
        """Make the type; the shape is the layout's."""
        return _fragment(element, layout)

    @property
    def linear(self) -> LinearLayout:
        """The layout."""
        return self.layout.data

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        """Parse `<64x32xf32, #tessera_target.layout<…>>`."""
        with parser.in_angle_brackets():
            dims, element = parser.parse_ranked_shape()
            parser.parse_punctuation(",")
            return [ints(dims), element, parser.parse_attribute()]

    def print_parameters(self, printer: Printer) -> None:
        """Print `<64x32xf32, #tessera_target.layout<…>>`."""
        with printer.in_angle_brackets():
            self._print_shape(printer)
            printer.print_string(", ")
            printer.print_attribute(self.layout)

    def verify(self) -> None:
        """Check that shape and layout agree."""
        if self.shape != self.linear.out_sizes or self.linear.out_dims != axis_names(len(self.shape)):
            raise VerifyException(f"a layout of {self.linear.out_sizes} does not fit {self.shape}")
        if not is_scalar(self.element):
            raise VerifyException(f"{self.element} is not an element type")


@irdl_attr_definition
class PointerType(ParametrizedAttribute, TypeAttribute):
    """The address of elements in a memory space."""

    name = "tessera_target.pointer"
    element: Attribute = param_def()
    space: StringAttr = param_def()

    @classmethod
    def of(cls, element: Attribute, space: str = "global") -> PointerType:
        """Make the type from plain values."""
        return _pointer(element, space)

    @property
    def dtype(self) -> DType:
        """The Tessera dtype of the elements."""
        return dtype_of(self.element)

    def verify(self) -> None:
        """Check the space's name."""
        if self.space.data not in SPACES:
            raise VerifyException(f"no memory space is called {self.space.data}")


@irdl_attr_definition
class BufferType(_Shaped):
    """A buffer of static shape in shared or scratch memory, stored row-major.

    `pitch` is the distance of two rows of the last dimension in elements (at least its size); `swizzle` permutes
    the 16-byte units of a row (`xor`) or of each of its 128-byte panels (`panels`; `ir.layouts.xor_swizzle`);
    `perm` is the stored axis of each logical axis.
    """

    name = "tessera_target.buffer"
    dims: ArrayAttr[IntAttr] = param_def()
    element: Attribute = param_def()
    space: StringAttr = param_def()
    swizzle: StringAttr = param_def()
    pitch: IntAttr = param_def()
    perm: ArrayAttr[IntAttr] = param_def()

    @classmethod
    def of(
        cls,
        shape: Sequence[int],
        element: Attribute,
        space: str,
        swizzle: str = "none",
        pitch: int | None = None,
        perm: Sequence[int] | None = None,
    ) -> BufferType:
        """Make the type from plain values; dense and in stored order by default."""
        order = list(perm or range(len(shape)))
        last = shape[order.index(len(shape) - 1)]
        return cls(
            ints(shape),
            element,
            text(space),
            text(swizzle),
            number(pitch or last),
            ints(order),
        )

    def times(self, count: int) -> BufferType:
        """Return the type of that many such buffers, one after the other along a new first axis."""
        perm = [0, *(axis + 1 for axis in self.permutation)]
        return BufferType.of(
            (count, *self.shape), self.element, self.space.data, self.swizzle.data, self.pitch.data, perm
        )

    @property
    def permutation(self) -> tuple[int, ...]:
        """The stored axis of each logical axis."""
        return tuple(axis.data for axis in self.perm.data)

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The sizes in stored order, without padding."""
        stored = [0] * len(self.shape)
        for size, axis in zip(self.shape, self.permutation, strict=True):
            stored[axis] = size
        return tuple(stored)

    @property
    def stored_strides(self) -> tuple[int, ...]:
        """The element stride of each stored axis."""
        shape, strides = self.stored_shape, [1] * len(self.shape)
        for axis in range(len(shape) - 2, -1, -1):
            strides[axis] = self.pitch.data if axis == len(shape) - 2 else strides[axis + 1] * shape[axis + 1]
        return tuple(strides)

    @property
    def strides(self) -> tuple[int, ...]:
        """The element stride of each logical axis."""
        return tuple(self.stored_strides[axis] for axis in self.permutation)

    def shared_layout(self) -> LinearLayout:
        """Return where each element is, as a map from element offset to logical coordinates (dense buffers)."""
        stored = self.stored_shape
        if self.swizzle.data == "none":
            layout = row_major(stored)
        else:
            panel = PANEL_BYTES if self.swizzle.data == "panels" else None
            layout = stacked(xor_swizzle(stored[-2:], self.dtype.bytes, row_bytes=panel), stored[:-2])
        return layout.transpose(self.permutation)

    @property
    def size_bytes(self) -> int:
        """Bytes the buffer takes."""
        shape = self.stored_shape
        rows = 1
        for size in shape[:-1]:
            rows *= size
        return rows * self.pitch.data * self.dtype.bytes

    @property
    def swizzle_bytes(self) -> int:
        """Bytes after which the swizzle of a buffer in panels repeats: eight rows of at most a panel's width."""
        return min(self.pitch.data * self.dtype.bytes * SWIZZLE_BYTES // PANEL_BYTES, SWIZZLE_BYTES)

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        """Parse `<64x32xbf16, "shared", "xor", 32, [0, 1]>`."""
        with parser.in_angle_brackets():
            dims, element = parser.parse_ranked_shape()
            parser.parse_punctuation(",")
            space = parser.parse_str_literal()
            parser.parse_punctuation(",")
            swizzle = parser.parse_str_literal()
            parser.parse_punctuation(",")
            pitch = parser.parse_integer()
            parser.parse_punctuation(",")
            perm = _parse_ints(parser)
        shape = ints(dims)
        order = ints(perm)
        return [shape, element, StringAttr(space), StringAttr(swizzle), IntAttr(pitch), order]

    def print_parameters(self, printer: Printer) -> None:
        """Print `<64x32xbf16, "shared", "xor", 32, [0, 1]>`."""
        with printer.in_angle_brackets():
            self._print_shape(printer)
            rest = f'"{self.space.data}", "{self.swizzle.data}", {self.pitch.data}, {list(self.permutation)}'
            printer.print_string(f", {rest}")

    def verify(self) -> None:
        """Check space, permutation and pitch."""
        if self.space.data not in SPACES:
            raise VerifyException(f"no memory space is called {self.space.data}")
        if sorted(self.permutation) != list(range(len(self.shape))):
            raise VerifyException(f"{self.permutation} is not a permutation")
        if self.pitch.data < self.stored_shape[-1]:
            raise VerifyException("the pitch is at least the row's size")


@lru_cache(maxsize=1024)
def _fragment(element: Attribute, layout: LinearLayout) -> FragmentType:
    return FragmentType(ints(layout.out_sizes), element, LayoutAttr(layout))


@lru_cache(maxsize=256)
def _pointer(element: Attribute, space: str) -> PointerType:
    return PointerType(element, text(space))


def fragment_of(type_: Attribute) -> FragmentType | None:
    """Return the type as a fragment type, or None for a scalar."""
    return type_ if isinstance(type_, FragmentType) else None


_OF_ELEMENTS = frozenset[type[Attribute]]({FragmentType, PointerType, BufferType})


def element_of(type_: Attribute) -> Attribute:
    """Return the element type of a fragment, pointer or buffer, or the scalar type itself."""
    of: Any = type_
    return of.element if type(type_) in _OF_ELEMENTS else type_


def with_element(type_: Attribute, element: Attribute) -> Attribute:
    """Return `type_` with another element type."""
    return FragmentType.of(element, type_.linear) if type(type_) is FragmentType else element
