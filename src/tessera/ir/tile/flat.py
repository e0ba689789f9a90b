"""Access to tensors without gaps as one row: elements that lie one after the other, whatever their dimensions."""

from __future__ import annotations

from xdsl.dialects.builtin import IntAttr
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import operand_def, prop_def, result_def, traits_def
from xdsl.utils.exceptions import VerifyException

from tessera.ir.definitions import TesseraOp, op_definition
from tessera.ir.effects import Effect, effect
from tessera.ir.formats import Int
from tessera.ir.tile.types import TensorType, TileType, describe
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
