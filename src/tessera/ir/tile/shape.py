"""Shape changes of tiles: broadcast, reshape, transpose."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects.builtin import ArrayAttr, IntAttr
from xdsl.ir import SSAValue
from xdsl.irdl import operand_def, prop_def, result_def, traits_def
from xdsl.utils.exceptions import VerifyException

from tessera.ir.attributes import ints
from tessera.ir.definitions import TesseraOp, op_definition
from tessera.ir.effects import PURE
from tessera.ir.formats import Ints
from tessera.ir.tile.types import TileType, describe, element_of, shape_of


@op_definition
class BroadcastOp(TesseraOp):
    """Repeats the size-1 dimensions of a tile up to the result's shape; the rank stays."""

    name = "tessera_tile.broadcast"
    source = operand_def(TileType)
    result = result_def(TileType)
    traits = traits_def(*PURE)
    assembly_format = "$source attr-dict `:` type($source) `->` type($result)"

    def __init__(self, source: SSAValue, shape: Sequence[int]):
        super().__init__(operands=[source], result_types=[TileType.of(shape, element_of(source.type))])

    def verify_(self) -> None:
        """Check rank, dtype, and that only size-1 dimensions grow."""
        src, dst = shape_of(self.source.type), shape_of(self.result.type)
        if len(src) != len(dst) or any(a not in (1, b) for a, b in zip(src, dst, strict=True)):
            raise VerifyException(f"{describe(self.source.type)} does not broadcast to {describe(self.result.type)}")
        _same_element(self.source, self.result)


@op_definition
class ReshapeOp(TesseraOp):
    """Reads a tile's elements, in row-major order, as another shape."""

    name = "tessera_tile.reshape"
    source = operand_def(TileType)
    result = result_def(TileType)
    traits = traits_def(*PURE)
    assembly_format = "$source attr-dict `:` type($source) `->` type($result)"

    def __init__(self, source: SSAValue, shape: Sequence[int]):
        super().__init__(operands=[source], result_types=[TileType.of(shape, element_of(source.type))])

    def verify_(self) -> None:
        """Check that the number of elements stays."""
        if prod(shape_of(self.source.type)) != prod(shape_of(self.result.type)):
            raise VerifyException(
                f"{describe(self.source.type)} does not have the size of {describe(self.result.type)}"
            )
        _same_element(self.source, self.result)


def unit_axes(source: tuple[int, ...], result: tuple[int, ...]) -> tuple[int | None, ...] | None:
    """Return which result axis each source axis is when only axes of size 1 differ, else None."""
    kept = [axis for axis, size in enumerate(result) if size > 1]
    if [size for size in source if size > 1] != [result[axis] for axis in kept]:
        return None
    rest = iter(kept)
    return tuple(next(rest) if size > 1 else None for size in source)


@op_definition
class TransposeOp(TesseraOp):
    """Permutes the dimensions of a tile: result dimension `i` is source dimension `perm[i]`."""

    name = "tessera_tile.transpose"
    source = operand_def(TileType)
    perm = prop_def(ArrayAttr[IntAttr])
    result = result_def(TileType)
    traits = traits_def(*PURE)
    custom_directives = (Ints,)
    assembly_format = "$source custom<Ints>($perm) attr-dict `:` type($source) `->` type($result)"

    def __init__(self, source: SSAValue, perm: Sequence[int]):
        shape = shape_of(source.type)
        super().__init__(
            operands=[source],
            properties={"perm": ints(perm)},
            result_types=[TileType.of([shape[p] for p in perm], element_of(source.type))],
        )

    @property
    def permutation(self) -> tuple[int, ...]:
        """The source dimension of each result dimension."""
        return tuple(axis.data for axis in self.perm.data)

    def verify_(self) -> None:
        """Check the permutation and the result's shape."""
        shape = shape_of(self.source.type)
        if sorted(self.permutation) != list(range(len(shape))):
            raise VerifyException(f"{self.permutation} is not a permutation of {len(shape)} dimensions")
        if shape_of(self.result.type) != tuple(shape[p] for p in self.permutation):
            raise VerifyException(f"transpose of {describe(self.source.type)} is not {describe(self.result.type)}")
        _same_element(self.source, self.result)


def _same_element(source: SSAValue, result: SSAValue) -> None:
    if element_of(source.type) != element_of(result.type):
        raise VerifyException("the dtype stays")


@op_definition
class SubtileOp(TesseraOp):
    """Takes the part of a tile at constant `offsets`, multiples of the result's sizes, which divide the tile's."""

    name = "tessera_tile.subtile"
    source = operand_def(TileType)
    offsets = prop_def(ArrayAttr[IntAttr])
    result = result_def(TileType)
    traits = traits_def(*PURE)
    custom_directives = (Ints,)
    assembly_format = "$source custom<Ints>($offsets) attr-dict `:` type($source) `->` type($result)"

    def __init__(self, source: SSAValue, offsets: Sequence[int], shape: Sequence[int]):
        super().__init__(
            operands=[source],
            properties={"offsets": ints(offsets)},
            result_types=[TileType.of(shape, element_of(source.type))],
        )

    @property
    def places(self) -> tuple[int, ...]:
        """The offset in each dimension."""
        return tuple(offset.data for offset in self.offsets.data)

    def verify_(self) -> None:
        """Check that the part is one of equal parts of the tile."""
        whole, part, places = shape_of(self.source.type), shape_of(self.result.type), self.places
        fits = len(whole) == len(part) == len(places) and all(
            not (size % piece or at % piece) and 0 <= at < size
            for size, piece, at in zip(whole, part, places, strict=True)
        )
        if not fits:
            raise VerifyException(
                f"{describe(self.result.type)} at {list(places)} is none of equal parts of {describe(self.source.type)}"
            )
        _same_element(self.source, self.result)
