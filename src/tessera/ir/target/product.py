"""Matrix products of the vector model: an op that multiplies whole tiles in memory, and one that prepares operands."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import IntAttr, StringAttr
from xdsl.ir import SSAValue
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

from tessera.ir.definitions import TesseraOp, op_definition
from tessera.ir.effects import PURE, Effect, effect
from tessera.ir.formats import Count
from tessera.ir.target.types import BufferType, FragmentType, PointerType
from tessera.ir.types import dtype_of, element_type, i1, index
from tessera.numerics import dtypes

ORDERS = ("interleave", "join")


@op_definition
class ProductOp(TesseraOp):
    """Adds `a @ b` to the buffer `acc`, by the CPU instruction named `instruction`.

    `rows`, `columns` and `depth` say how much of the operands counts; the rest is not read. Where the instruction
    multiplies groups of neighbours along the depth, elements of `a` and `b` are such groups, 32 bits wide.

    `a` is a buffer of rows; or the address of a tensor whose rows are read in place: `left` is then where `a` begins
    and the distance of its rows, in elements of the tensor. At run time they are copied to the buffer `room` first, if
    it is there and their distance would crowd them into a few sets of the second cache. `b` is a buffer of panels, each
    `[k][n]` and a few vectors wide; or the address of a tensor that is read in place: `place` is then where `b` begins,
    the distance of its rows and that of its columns; one of the distances is the constant 1.

    `ahead` are rows of the tensor at `source` that will be packed next, which the product asks memory for as it goes:
    where they begin, their distance, their number, and their length, a constant.

    `acc` may be one of some `strips` that sums have been cut into: one function then computes it and all of them.

    Where `fresh` is given and holds, `acc` is overwritten by the product alone, whatever is in it. A matrix unit sets
    what lies outside to zero, too, up to the rows and columns that `needed` says; all of it without.

    Where `inside` is given and holds, the sums lie in `tensor` instead, of which `sums` are where they begin and the
    distance of their rows. No matrix unit multiplies.
    """

    name = "tessera_target.product"
    a = operand_def(BufferType | PointerType)
    b = operand_def(BufferType | PointerType)
    acc = operand_def(BufferType)
    rows = operand_def(index)
    columns = operand_def(index)
    depth = operand_def(index)
    left = var_operand_def(index)
    room = opt_operand_def(BufferType)
    place = var_operand_def(index)
    source = opt_operand_def(PointerType)
    ahead = var_operand_def(index)
    fresh = opt_operand_def(i1)
    needed = var_operand_def(index)
    tensor = opt_operand_def(PointerType)
    sums = var_operand_def(index)
    inside = opt_operand_def(i1)
    instruction = prop_def(StringAttr)
    strips = prop_def(IntAttr)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(*effect(Effect.STATE))
    custom_directives = (Count,)
    assembly_format = (
        "$instruction $a `,` $b `,` $acc `rows` $rows `columns` $columns `depth` $depth (`left` $left^)? "
        "(`room` $room^ `:` type($room))? (`place` $place^)? (`ahead` $ahead^)? (`fresh` $fresh^)? "
        "(`needed` $needed^)? (`tensor` $tensor^ `:` type($tensor))? (`sums` $sums^)? (`inside` $inside^)? "
        "(`strips` custom<Count>($strips)^)? attr-dict "
        "`:` type($a) `,` type($b) `,` type($acc) (`,` $source^ `:` type($source))?"
    )

    def __init__(
        self,
        a: SSAValue,
        b: SSAValue,
        acc: SSAValue,
        extents: tuple[SSAValue, SSAValue, SSAValue],
        instruction: str,
        place: Sequence[SSAValue] = (),
        left: Sequence[SSAValue] = (),
        source: SSAValue | None = None,
        ahead: Sequence[SSAValue] = (),
        fresh: SSAValue | None = None,
        room: SSAValue | None = None,
        strips: int = 1,
        placed: tuple[SSAValue, Sequence[SSAValue], SSAValue] | None = None,
        needed: Sequence[SSAValue] = (),
    ):
        tensor, sums, inside = placed or (None, (), None)
        beside = [source, list(ahead), fresh, list(needed), tensor, list(sums), inside]
        super().__init__(
            operands=[a, b, acc, *extents, list(left), room, list(place), *beside],
            properties={"instruction": StringAttr(instruction), "strips": IntAttr(strips)},
        )

    def verify_(self) -> None:
        """Check ranks, and that an operand in place has a pitch."""
        a, b, acc = self.a.type, self.b.type, self.acc.type
        assert isinstance(acc, BufferType)
        ranks = (
            len(a.shape) if isinstance(a, BufferType) else 2,
            len(acc.shape),
            len(b.shape) if isinstance(b, BufferType) else 3,
        )
        if ranks != (2, 2, 3):
            raise VerifyException("a product takes rows, panels and rows")
        if len(self.left) != (2 if isinstance(a, PointerType) else 0):
            raise VerifyException("rows in place have an offset and a distance, packed ones have none")
        if self.room is not None and not self.left:
            raise VerifyException("only rows in place have room for a copy")
        if len(self.place) != (3 if isinstance(b, PointerType) else 0):
            raise VerifyException("an operand in place has an offset and two distances, a packed one has none")
        if len(self.needed) not in (0, 2):
            raise VerifyException("rows and columns are needed, or all of them")
        if len(self.sums) != (0 if self.tensor is None else 2) or (self.tensor is None) != (self.inside is None):
            raise VerifyException("sums in a tensor have an offset, a distance, and a condition")
        if len(self.ahead) != (0 if self.source is None else 4):
            raise VerifyException("rows to ask for have a tensor, an offset, a distance, a number and a length")


@op_definition
class GroupChunksOp(TesseraOp):
    """Puts neighbours along the depth of a product into one 32-bit element of a chunk.

    `interleave`: element j of the result holds element j of every operand, the first operand in the lowest bits.
    `join`: the operands follow each other, and each run of as many elements as there are operands is one element.
    """

    name = "tessera_target.group_chunks"
    chunks = var_operand_def(FragmentType)
    order = prop_def(StringAttr)
    result = result_def(FragmentType)
    traits = traits_def(*PURE)
    assembly_format = "$order $chunks attr-dict `:` type($chunks) `->` type($result)"

    def __init__(self, chunks: Sequence[SSAValue], order: str):
        first = chunks[0].type
        assert isinstance(first, FragmentType)
        result = FragmentType.of(element_type(dtypes.i32), first.linear)
        super().__init__(operands=[list(chunks)], properties={"order": StringAttr(order)}, result_types=[result])

    def verify_(self) -> None:
        """Check that the chunks are of one type and fill 32 bits together."""
        types = {value.type for value in self.chunks}
        if len(types) != 1 or self.order.data not in ORDERS:
            raise VerifyException("chunks of one type are grouped, by interleaving or joining")
        bits = dtype_of(self.chunks[0].type.element).bits * len(self.chunks)  # pyright: ignore
        if bits != 32 or self.result.type.shape != self.chunks[0].type.shape:  # pyright: ignore
            raise VerifyException("a group is 32 bits wide, and a chunk has as many groups as elements")
