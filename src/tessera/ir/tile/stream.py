"""Tiles whose loop several programs share out evenly (stream-K), with partial sums that meet in device memory.

Source: Osama et al., "Stream-K: Work-centric Parallel Decomposition for Dense Matrix-Matrix Multiplication on the GPU"
(arXiv 2301.03598).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from xdsl.dialects.builtin import ArrayAttr, StringAttr
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import (
    operand_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.utils.exceptions import VerifyException

from tessera.ir.definitions import TesseraOp, op_definition
from tessera.ir.effects import PURE, Effect, effect
from tessera.ir.formats import Names
from tessera.ir.tile.types import TileType, element_of, shape_of
from tessera.ir.types import dtype_of, i1, index
from tessera.ir.walking import ops_in
from tessera.target.gpu_rates import sharers

COMBINING = ("add", "mul", "maximum", "minimum", "and", "or", "xor")
"""What combines partial results: parts of a loop may be combined in any grouping."""


@op_definition
class ShareOp(TesseraOp):
    """The part of its tile's `steps` that a program does: those from `first` to before `last`.

    `owner` says whether these are the tile's last steps: the owner finishes the tile. `others` counts the programs
    that do the steps before the owner's own, with the numbers below its own, and is 0 for all but the owner. A tile
    without steps has an owner too.
    """

    name = "tessera_tile.share"
    steps = operand_def(index)
    first = result_def(index)
    last = result_def(index)
    owner = result_def(i1)
    others = result_def(index)
    traits = traits_def(*PURE)
    assembly_format = "$steps attr-dict `:` type($first) `,` type($last) `,` type($owner) `,` type($others)"

    def __init__(self, steps: SSAValue):
        super().__init__(operands=[steps], result_types=[index, index, i1, index])


@op_definition
class LeaveSumsOp(TesseraOp):
    """Leaves partial sums in the program's slot of device memory, for the owner of the tile, and goes on.

    A program does so once in a launch at most, and not at all where it is one too many for its tile's steps.
    """

    name = "tessera_tile.leave_sums"
    partials = var_operand_def(TileType)
    traits = traits_def(*effect(Effect.STATE))
    assembly_format = "$partials attr-dict `:` type($partials)"

    def __init__(self, partials: Sequence[SSAValue]):
        super().__init__(operands=[list(partials)])

    def verify_(self) -> None:
        """Check that there is a sum."""
        _verify_sums(self.partials)


@op_definition
class CollectSumsOp(TesseraOp):
    """Adds to the owner's partial sums those that the `others` programs below it leave, the nearest number first.

    It waits for each. The order is fixed, so that the bits of the sums are the same in every run. Where there are
    `fns`, one for each sum, they combine two partial results instead of additions.
    """

    name = "tessera_tile.collect_sums"
    others = operand_def(index)
    fns = prop_def(ArrayAttr[StringAttr])
    partials = var_operand_def(TileType)
    sums = var_result_def(TileType)
    traits = traits_def(*effect(Effect.STATE))
    custom_directives = (Names,)
    assembly_format = (
        "$partials `of` $others (`by` custom<Names>($fns)^)? attr-dict `:` type($partials) `->` type($sums)"
    )

    def __init__(self, others: SSAValue, partials: Sequence[SSAValue], fns: Sequence[str] = ()):
        super().__init__(
            operands=[others, list(partials)],
            properties={"fns": ArrayAttr([StringAttr(fn) for fn in fns])},
            result_types=[[partial.type for partial in partials]],
        )

    @property
    def combining(self) -> list[str]:
        """The function that combines two parts of each sum."""
        return [fn.data for fn in self.fns] or ["add"] * len(self.partials)

    def verify_(self) -> None:
        """Check that there is a sum, and that each is of its partial sum's type."""
        _verify_sums(self.partials)
        if [value.type for value in self.sums] != [value.type for value in self.partials]:
            raise VerifyException("each sum has the type of its partial sum")
        if len(self.combining) != len(self.partials):
            raise VerifyException("each sum has a function that combines its parts, or none has")
        for fn in self.combining:
            if fn not in COMBINING:
                raise VerifyException(f"parts are combined by {', '.join(COMBINING)}, not {fn}")


def sharers_of(grid: Operation) -> int:
    """Return how many programs for each tile share out steps at most, where a launch has few tiles.

    Args:
        grid: the launch.
    """
    most = max((bytes_of(op.partials.types) for op in ops_in(grid) if isinstance(op, CollectSumsOp)), default=1)
    return sharers(most)


def bytes_of(types: Iterable[Attribute]) -> int:
    """Return the bytes of the elements of tiles."""
    return sum(prod(shape_of(type_)) * dtype_of(element_of(type_)).bytes for type_ in types)


def _verify_sums(partials: Sequence[SSAValue]) -> None:
    if not partials:
        raise VerifyException("at least one partial sum changes hands")
