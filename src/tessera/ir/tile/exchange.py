"""Elements that change places: pairs whose indices differ in given bits, as in butterflies; and sorting."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import IntAttr, UnitAttr
from xdsl.ir import SSAValue
from xdsl.irdl import (
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.utils.exceptions import VerifyException

from tessera.ir.definitions import TesseraOp, op_definition
from tessera.ir.effects import PURE
from tessera.ir.formats import Int
from tessera.ir.tile.types import TileType, element_of, shape_of
from tessera.ir.types import dtype_of


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


@op_definition
class SortOp(TesseraOp):
    """Puts integers in order along `axis`; with a second tile, pairs: of equal elements those of the second decide.

    With `merge`, the elements fall and then rise already, or rise and then fall, as one run or as one turned round.
    """

    name = "tessera_tile.sort"
    sources = var_operand_def(TileType)
    axis = prop_def(IntAttr)
    descending = opt_prop_def(UnitAttr)
    merge = opt_prop_def(UnitAttr)
    outputs = var_result_def(TileType)
    traits = traits_def(*PURE)
    custom_directives = (Int,)
    assembly_format = (
        "$sources `axis` custom<Int>($axis) (`descending` $descending^)? (`merge` $merge^)? attr-dict "
        "`:` type($sources) `->` type($outputs)"
    )

    def __init__(self, sources: Sequence[SSAValue], axis: int, descending: bool = False, merge: bool = False):
        super().__init__(
            operands=[list(sources)],
            properties={
                "axis": IntAttr(axis),
                "descending": UnitAttr() if descending else None,
                "merge": UnitAttr() if merge else None,
            },
            result_types=[[source.type for source in sources]],
        )

    @property
    def size(self) -> int:
        """How many elements are put in order."""
        return shape_of(self.sources[0].type)[self.axis.data]

    def verify_(self) -> None:
        """Check that integers of one shape are put in order, and that a merge has two halves."""
        if len(self.sources) not in (1, 2):
            raise VerifyException(f"{len(self.sources)} tiles; one is put in order, or pairs are")
        if [source.type for source in self.sources] != [output.type for output in self.outputs]:
            raise VerifyException("sorting keeps the types")
        shape = shape_of(self.sources[0].type)
        if any(shape_of(source.type) != shape for source in self.sources):
            raise VerifyException("tiles of several shapes")
        if any(dtype_of(element_of(source.type)).kind not in ("int", "uint") for source in self.sources):
            raise VerifyException("integers are put in order")
        if not 0 <= self.axis.data < len(shape):
            raise VerifyException(f"axis {self.axis.data} of {len(shape)} dimensions")
        if self.size < 2 or (self.merge is not None and self.size & (self.size - 1)):
            raise VerifyException(f"{self.size} elements along the axis")


def is_whole(size: int, bits: int) -> bool:
    """Return whether the partner `i ^ bits` of each index below `size` is below it too."""
    return size % (1 << bits.bit_length()) == 0
