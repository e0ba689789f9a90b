"""Sums split over the programs of a cluster: each takes a part of a loop, and the first adds up the partial sums."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import IntAttr
from xdsl.ir import SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    operand_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.utils.exceptions import VerifyException

from tessera.ir.definitions import TesseraOp, op_definition
from tessera.ir.effects import Effect, effect
from tessera.ir.formats import Int
from tessera.ir.tile.roles import BarriersType
from tessera.ir.tile.types import SharedType, TileType, element_of, shape_of


@op_definition
class AllocLinksOp(TesseraOp):
    """Sets up what `ranks` programs need to hand partial sums to the first; none goes on before all have."""

    name = "tessera_tile.alloc_links"
    ranks = prop_def(IntAttr)
    result = result_def(BarriersType)
    traits = traits_def(*effect(Effect.STATE))
    assembly_format = "`ranks` custom<Int>($ranks) attr-dict `:` type($result)"
    custom_directives = (Int,)

    def __init__(self, ranks: int):
        super().__init__(properties={"ranks": IntAttr(ranks)}, result_types=[BarriersType(IntAttr(1))])

    def verify_(self) -> None:
        """Check that there is something to link."""
        if self.ranks.data < 2:
            raise VerifyException("at least two programs are linked")


@op_definition
class PartialSendOp(TesseraOp):
    """Lets the first program have this one's partial sums, by way of its buffers, and waits until it has read them."""

    name = "tessera_tile.partial_send"
    links = operand_def(BarriersType)
    partials = var_operand_def(TileType)
    buffers = var_operand_def(SharedType)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(*effect(Effect.STATE))
    assembly_format = (
        "$links `,` $partials `by` $buffers attr-dict `:` type($links) `,` type($partials) `by` type($buffers)"
    )

    def __init__(self, links: SSAValue, partials: Sequence[SSAValue], buffers: Sequence[SSAValue]):
        super().__init__(operands=[links, list(partials), list(buffers)])

    def verify_(self) -> None:
        """Check that there is a buffer for each partial sum."""
        _verify_buffers(self.partials, self.buffers)


@op_definition
class PartialSumOp(TesseraOp):
    """Adds to the first program's partial sums those of the others, in the order of their ranks.

    The order is fixed, so that the bits of the sums are the same in every run.
    """

    name = "tessera_tile.partial_sum"
    links = operand_def(BarriersType)
    partials = var_operand_def(TileType)
    buffers = var_operand_def(SharedType)
    sums = var_result_def(TileType)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(*effect(Effect.STATE))
    assembly_format = (
        "$links `,` $partials `by` $buffers attr-dict "
        "`:` type($links) `,` type($partials) `by` type($buffers) `->` type($sums)"
    )

    def __init__(self, links: SSAValue, partials: Sequence[SSAValue], buffers: Sequence[SSAValue]):
        super().__init__(
            operands=[links, list(partials), list(buffers)],
            result_types=[[partial.type for partial in partials]],
        )

    def verify_(self) -> None:
        """Check that there is a buffer for each partial sum, and that each sum is of its partial sum's type."""
        _verify_buffers(self.partials, self.buffers)
        if [value.type for value in self.sums] != [value.type for value in self.partials]:
            raise VerifyException("each sum has the type of its partial sum")


def _verify_buffers(partials: Sequence[SSAValue], buffers: Sequence[SSAValue]) -> None:
    wanted = [(shape_of(partial.type), element_of(partial.type)) for partial in partials]
    if wanted != [(shape_of(buffer.type), element_of(buffer.type)) for buffer in buffers]:
        raise VerifyException("each partial sum has a buffer of its size")
