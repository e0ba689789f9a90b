"""Access to tensors by where elements lie in memory, whatever their dimensions."""

from __future__ import annotations

from xdsl.dialects.builtin import IntAttr
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import operand_def, opt_operand_def, prop_def, result_def, traits_def
from xdsl.utils.exceptions import VerifyException

from tessera.ir.definitions import TesseraOp, op_definition
from tessera.ir.effects import Effect, effect
from tessera.ir.formats import Int
from tessera.ir.tile.memory import verify_mask
from tessera.ir.tile.types import TensorType, TileType, describe, element_of, shape_of
from tessera.ir.types import index


def _check(tensor: Attribute, size: int, tile: Attribute) -> None:
    assert isinstance(tensor, TensorType)
    expected = TileType.of([size], tensor.element)
    if tile != expected:
        raise VerifyException(f"{size} elements are {describe(expected)}, not {describe(tile)}")


@op_definition
class LoadFlatOp(TesseraOp):
    """Loads elements of a tensor without gaps by their number in row-major order; those behind its end are 0."""

    name = "tessera_tile.load_flat"
    tensor = operand_def(TensorType)
    offset = operand_def(index)
    size = prop_def(IntAttr)
    result = result_def(TileType)
    traits = traits_def(*effect(Effect.MEMORY, reads_only=True))
    custom_directives = (Int,)
    assembly_format = "$tensor `[` $offset `]` custom<Int>($size) attr-dict `:` type($tensor) `->` type($result)"

    def __init__(self, tensor: SSAValue, offset: SSAValue, size: int):
        assert isinstance(tensor.type, TensorType)
        super().__init__(
            operands=[tensor, offset],
            properties={"size": IntAttr(size)},
            result_types=[TileType.of([size], tensor.type.element)],
        )

    def verify_(self) -> None:
        """Check that the result holds so many elements."""
        _check(self.tensor.type, self.size.data, self.result.type)


@op_definition
class StoreFlatOp(TesseraOp):
    """Stores elements to a tensor without gaps by their number in row-major order; those behind its end nowhere."""

    name = "tessera_tile.store_flat"
    value = operand_def(TileType)
    tensor = operand_def(TensorType)
    offset = operand_def(index)
    traits = traits_def(*effect(Effect.MEMORY))
    assembly_format = "$value `,` $tensor `[` $offset `]` attr-dict `:` type($value) `,` type($tensor)"

    def __init__(self, value: SSAValue, tensor: SSAValue, offset: SSAValue):
        super().__init__(operands=[value, tensor, offset])

    def verify_(self) -> None:
        """Check that the tile is one row of the tensor's elements."""
        assert isinstance(self.value.type, TileType)
        _check(self.tensor.type, self.value.type.shape[0], self.value.type)


@op_definition
class GatherAtOp(TesseraOp):
    """Loads the elements that lie so many elements behind the first one of a tensor whose strides are positive.

    All lie in the tensor, but those that are masked off: they become zero.
    """

    name = "tessera_tile.gather_at"
    tensor = operand_def(TensorType)
    distances = operand_def(TileType)
    mask = opt_operand_def()
    result = result_def(TileType)
    traits = traits_def(*effect(Effect.MEMORY, reads_only=True))
    assembly_format = (
        "$tensor `[` $distances `]` (`mask` $mask^ `:` type($mask))? attr-dict "
        "`:` type($tensor) `[` type($distances) `]` `->` type($result)"
    )

    def __init__(self, tensor: SSAValue, distances: SSAValue, mask: SSAValue | None = None):
        assert isinstance(tensor.type, TensorType)
        result = TileType.of(shape_of(distances.type), tensor.type.element)
        super().__init__(operands=[tensor, distances, mask], result_types=[result])

    def verify_(self) -> None:
        """Check that distances, mask and result have one shape."""
        _check_distances(self.tensor.type, self.distances.type, self.result.type)
        verify_mask(self.mask, shape_of(self.result.type))


@op_definition
class ScatterAtOp(TesseraOp):
    """Stores elements so many elements behind the first one of a tensor, as `gather_at` loads them."""

    name = "tessera_tile.scatter_at"
    value = operand_def(TileType)
    tensor = operand_def(TensorType)
    distances = operand_def(TileType)
    mask = opt_operand_def()
    traits = traits_def(*effect(Effect.MEMORY))
    assembly_format = (
        "$value `,` $tensor `[` $distances `]` (`mask` $mask^ `:` type($mask))? attr-dict "
        "`:` type($value) `,` type($tensor) `[` type($distances) `]`"
    )

    def __init__(self, value: SSAValue, tensor: SSAValue, distances: SSAValue, mask: SSAValue | None = None):
        super().__init__(operands=[value, tensor, distances, mask])

    def verify_(self) -> None:
        """Check that distances, mask and value have one shape."""
        _check_distances(self.tensor.type, self.distances.type, self.value.type)
        verify_mask(self.mask, shape_of(self.value.type))


def _check_distances(tensor: Attribute, distances: Attribute, tile: Attribute) -> None:
    assert isinstance(tensor, TensorType)
    if element_of(distances) != index:
        raise VerifyException(f"distances are index, not {describe(distances)}")
    expected = TileType.of(shape_of(distances), tensor.element)
    if tile != expected:
        raise VerifyException(f"elements at {describe(distances)} are {describe(expected)}, not {describe(tile)}")
