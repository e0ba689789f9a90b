"""Pairs of elements: each meets the one whose index differs in given bits, as in butterflies and sorting networks."""

from __future__ import annotations

from xdsl.dialects.builtin import IntAttr
from xdsl.ir import SSAValue
from xdsl.irdl import operand_def, prop_def, result_def, traits_def
from xdsl.utils.exceptions import VerifyException

from tessera.ir.definitions import TesseraOp, op_definition
from tessera.ir.effects import PURE
from tessera.ir.formats import Int
from tessera.ir.tile.types import TileType, shape_of


@op_definition
class ExchangeOp(TesseraOp):
    """Gives each index `i` along `axis` the element of `i ^ bits`; one whose partner lies outside keeps its own."""

    name = "tessera_tile.exchange"
    source = operand_def(TileType)
    axis = prop_def(IntAttr)
    bits = prop_def(IntAttr)
    result = result_def(TileType)
    traits = traits_def(*PURE)
    custom_directives = (Int,)
    assembly_format = (
        "$source `axis` custom<Int>($axis) `bits` custom<Int>($bits) attr-dict `:` type($source) `->` type($result)"
    )

    def __init__(self, source: SSAValue, axis: int, bits: int):
        super().__init__(
            operands=[source],
            properties={"axis": IntAttr(axis), "bits": IntAttr(bits)},
            result_types=[source.type],
        )

    def verify_(self) -> None:
        """Check the axis, that some index has a partner, and that the type stays."""
        shape = shape_of(self.source.type)
        if self.source.type != self.result.type:
            raise VerifyException("an exchange keeps the type")
        if not 0 <= self.axis.data < len(shape):
            raise VerifyException(f"axis {self.axis.data} of {len(shape)} dimensions")
        if not 0 < self.bits.data < 1 << (shape[self.axis.data] - 1).bit_length():
            raise VerifyException(f"bits {self.bits.data}: no index below {shape[self.axis.data]} has a partner")


def is_whole(size: int, bits: int) -> bool:
    """Return whether the partner `i ^ bits` of each index below `size` is below it too."""
    return size % (1 << bits.bit_length()) == 0
