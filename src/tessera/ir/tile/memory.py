"""Access to tensors in global memory: bounded slices and index tiles. Atomics are in `atomics`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from xdsl.dialects.builtin import ArrayAttr, IntAttr
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    operand_def,
    opt_operand_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.utils.exceptions import VerifyException

from tessera.ir.attributes import ints
from tessera.ir.definitions import TesseraOp, op_definition
from tessera.ir.effects import Effect, effect
from tessera.ir.formats import Ints
from tessera.ir.tile.types import TensorType, TileType, describe, element_of, shape_of
from tessera.ir.types import dtype_of, i1, index


class Slice:
    """A bounded box of a tensor: one offset operand and one static size per tensor dimension.

    Dimensions named in `drop` have size 1 and do not appear in the tile.
    """

    if TYPE_CHECKING:  # at run time xDSL takes every annotation for a field of the op
        tensor: Any
        offsets: Any
        sizes: Any
        drop: Any

    @property
    def size_list(self) -> tuple[int, ...]:
        """The extent of the box along each tensor dimension."""
        return tuple([size.data for size in self.sizes.data])

    @property
    def dropped(self) -> tuple[int, ...]:
        """Tensor dimensions that the tile does not have."""
        return tuple([axis.data for axis in self.drop.data])

    @property
    def kept(self) -> tuple[int, ...]:
        """The tensor dimension of each tile dimension."""
        dropped = self.dropped
        return tuple([axis for axis in range(len(self.sizes.data)) if axis not in dropped])

    @property
    def element_bytes(self) -> int:
        """The bytes of an element in memory."""
        return dtype_of(element_of(self.tensor.type)).bytes

    @property
    def tile_shape(self) -> tuple[int, ...]:
        """The shape of the tile that the box holds."""
        sizes = self.size_list
        return tuple([sizes[axis] for axis in self.kept])

    def verify_slice(self, tile: Attribute) -> None:
        """Check ranks, dropped dimensions, and that `tile` is what the box holds."""
        rank, sizes, shape = self.tensor.type.rank, self.size_list, self.tile_shape
        if len(self.offsets) != rank or len(sizes) != rank:
            raise VerifyException(f"a slice of a rank-{rank} tensor has {rank} offsets and sizes")
        if any(sizes[axis] != 1 for axis in self.dropped):
            raise VerifyException("only dimensions of size 1 can be dropped")
        if shape_of(tile) != shape:
            raise VerifyException(f"the slice holds {shape}, not {describe(tile)}")
        if element_of(tile) != self.tensor.type.element:
            raise VerifyException(f"a slice of {describe(self.tensor.type)} is not {describe(tile)}")


def _slice_result(tensor: SSAValue, sizes: Sequence[int], drop: Sequence[int]) -> Attribute:
    assert isinstance(tensor.type, TensorType)
    kept = [size for axis, size in enumerate(sizes) if axis not in drop]
    return TileType.of(kept, tensor.type.element) if kept else tensor.type.element


@op_definition
class LoadOp(TesseraOp, Slice):
    """Loads a box of a tensor; elements outside it are `fill` (default zero).

    Where `mask` (a bool tile of the result's shape) is false the result is `fill` and nothing is read.
    """

    name = "tessera_tile.load"
    tensor = operand_def(TensorType)
    offsets = var_operand_def(index)
    mask = opt_operand_def()
    fill = opt_operand_def()
    sizes = prop_def(ArrayAttr[IntAttr])
    drop = prop_def(ArrayAttr[IntAttr])
    result = result_def()
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(*effect(Effect.MEMORY, reads_only=True))
    custom_directives = (Ints,)
    assembly_format = (
        "$tensor `[` $offsets `]` custom<Ints>($sizes) (`drop` custom<Ints>($drop)^)? "
        "(`mask` $mask^ `:` type($mask))? (`fill` $fill^ `:` type($fill))? attr-dict "
        "`:` type($tensor) `->` type($result)"
    )

    def __init__(
        self,
        tensor: SSAValue,
        offsets: Sequence[SSAValue],
        sizes: Sequence[int],
        drop: Sequence[int] = (),
        mask: SSAValue | None = None,
        fill: SSAValue | None = None,
    ):
        super().__init__(
            operands=[tensor, list(offsets), mask, fill],
            properties={"sizes": ints(sizes), "drop": ints(drop)},
            result_types=[_slice_result(tensor, sizes, drop)],
        )

    def verify_(self) -> None:
        """Check the box, the mask's shape and the fill's type."""
        self.verify_slice(self.result.type)
        verify_mask(self.mask, shape_of(self.result.type))
        if self.fill is not None and self.fill.type != element_of(self.result.type):
            raise VerifyException("the fill value has the tensor's dtype")


@op_definition
class StoreOp(TesseraOp, Slice):
    """Stores a tile to a box of a tensor; elements outside the tensor or masked off are not written."""

    name = "tessera_tile.store"
    value = operand_def()
    tensor = operand_def(TensorType)
    offsets = var_operand_def(index)
    mask = opt_operand_def()
    sizes = prop_def(ArrayAttr[IntAttr])
    drop = prop_def(ArrayAttr[IntAttr])
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(*effect(Effect.MEMORY))
    custom_directives = (Ints,)
    assembly_format = (
        "$value `,` $tensor `[` $offsets `]` custom<Ints>($sizes) (`drop` custom<Ints>($drop)^)? "
        "(`mask` $mask^ `:` type($mask))? attr-dict `:` type($value) `,` type($tensor)"
    )

    def __init__(
        self,
        value: SSAValue,
        tensor: SSAValue,
        offsets: Sequence[SSAValue],
        sizes: Sequence[int],
        drop: Sequence[int] = (),
        mask: SSAValue | None = None,
    ):
        super().__init__(
            operands=[value, tensor, list(offsets), mask],
            properties={"sizes": ints(sizes), "drop": ints(drop)},
        )

    def verify_(self) -> None:
        """Check the box and the mask's shape."""
        self.verify_slice(self.value.type)
        verify_mask(self.mask, shape_of(self.value.type))


def verify_mask(mask: SSAValue | None, shape: tuple[int, ...]) -> None:
    """Check that a mask is a bool tile of a shape."""
    if mask is not None and (element_of(mask.type) != i1 or shape_of(mask.type) != shape):
        raise VerifyException(f"the mask is a bool tile of shape {shape}, got {describe(mask.type)}")


def shape_at(indices: Sequence[SSAValue]) -> tuple[int, ...]:
    """Return the shape of the elements at some indices: theirs, or that of the one in a tensor without dimensions."""
    return shape_of(indices[0].type) if indices else ()


def verify_indices(tensor: Attribute, indices: Sequence[SSAValue], shape: tuple[int, ...]) -> None:
    """Check that there is an index of one shape for each dimension of a tensor."""
    assert isinstance(tensor, TensorType)
    if len(indices) != tensor.rank:
        raise VerifyException(f"a rank-{tensor.rank} tensor takes {tensor.rank} indices, got {len(indices)}")
    if any(shape_of(i.type) != shape for i in indices):
        raise VerifyException(f"every index has the shape {shape}")


@op_definition
class GatherOp(TesseraOp):
    """Loads single elements at index tiles (or scalars), one index per tensor dimension, all of one shape.

    What lies outside the tensor, or is masked off, is not read and becomes `fill` (default zero).
    """

    name = "tessera_tile.gather"
    tensor = operand_def(TensorType)
    indices = var_operand_def()
    mask = opt_operand_def()
    fill = opt_operand_def()
    result = result_def()
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(*effect(Effect.MEMORY, reads_only=True))
    assembly_format = (
        "$tensor `[` $indices `]` "
        "(`mask` $mask^ `:` type($mask))? (`fill` $fill^ `:` type($fill))? attr-dict "
        "`:` type($tensor) `[` type($indices) `]` `->` type($result)"
    )

    def __init__(
        self,
        tensor: SSAValue,
        indices: Sequence[SSAValue],
        mask: SSAValue | None = None,
        fill: SSAValue | None = None,
    ):
        assert isinstance(tensor.type, TensorType)
        shape, element = shape_at(indices), tensor.type.element
        super().__init__(
            operands=[tensor, list(indices), mask, fill],
            result_types=[TileType.of(shape, element) if shape else element],
        )

    def verify_(self) -> None:
        """Check rank and that indices, mask and result have one shape."""
        shape = shape_of(self.result.type)
        verify_indices(self.tensor.type, list(self.indices), shape)
        verify_mask(self.mask, shape)


@op_definition
class ScatterOp(TesseraOp):
    """Stores single elements at index tiles (or scalars), one index per tensor dimension.

    What lies outside the tensor, or is masked off, is not written.
    """

    name = "tessera_tile.scatter"
    value = operand_def()
    tensor = operand_def(TensorType)
    indices = var_operand_def()
    mask = opt_operand_def()
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(*effect(Effect.MEMORY))
    assembly_format = (
        "$value `,` $tensor `[` $indices `]` (`mask` $mask^ `:` type($mask))? attr-dict "
        "`:` type($value) `,` type($tensor) `[` type($indices) `]`"
    )

    def __init__(self, value: SSAValue, tensor: SSAValue, indices: Sequence[SSAValue], mask: SSAValue | None = None):
        super().__init__(operands=[value, tensor, list(indices), mask])

    def verify_(self) -> None:
        """Check rank and that indices, mask and value have one shape."""
        shape = shape_of(self.value.type)
        verify_indices(self.tensor.type, list(self.indices), shape)
        verify_mask(self.mask, shape)
