"""Parts of tiles: boxes with a step in each dimension, and elements picked by an index tile."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ArrayAttr, IntAttr
from xdsl.ir import SSAValue
from xdsl.irdl import operand_def, prop_def, result_def, traits_def, var_operand_def
from xdsl.utils.exceptions import VerifyException

from tessera.ir.attributes import ints
from tessera.ir.definitions import TesseraOp, op_definition
from tessera.ir.effects import PURE
from tessera.ir.formats import Int, Ints
from tessera.ir.tile.types import TileType, describe, element_of, shape_of
from tessera.ir.types import dtype_of, index


@op_definition
class PartOp(TesseraOp):
    """Reads a part of a tile: along each dimension, element `i` is the tile's at `start + step * i`, zero outside.

    Dimensions in `wrap` have no outside: places are taken modulo their size; the step is 1, and nothing is read twice.
    A result without dimensions is the element at the starts, as a scalar.
    """

    name = "tessera_tile.part"
    source = operand_def(TileType)
    starts = var_operand_def(index)
    steps = prop_def(ArrayAttr[IntAttr])
    wrap = prop_def(ArrayAttr[IntAttr])
    result = result_def()
    traits = traits_def(*PURE)
    custom_directives = (Ints,)
    assembly_format = (
        "$source `[` $starts `]` `steps` custom<Ints>($steps) (`wrap` custom<Ints>($wrap)^)? attr-dict "
        "`:` type($source) `->` type($result)"
    )

    def __init__(
        self,
        source: SSAValue,
        starts: Sequence[SSAValue],
        shape: Sequence[int],
        steps: Sequence[int] | None = None,
        wrap: Sequence[int] = (),
    ):
        element = element_of(source.type)
        super().__init__(
            operands=[source, list(starts)],
            properties={"steps": ints(steps or [1] * len(starts)), "wrap": ints(wrap)},
            result_types=[TileType.of(shape, element) if shape else element],
        )

    @property
    def step_list(self) -> tuple[int, ...]:
        """The step along each dimension of the tile."""
        return tuple(step.data for step in self.steps.data)

    @property
    def wrapped(self) -> tuple[int, ...]:
        """The dimensions whose places are taken modulo their size."""
        return tuple(axis.data for axis in self.wrap.data)

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many elements are read along each dimension of the tile."""
        return shape_of(self.result.type) or (1,) * len(shape_of(self.source.type))

    def verify_(self) -> None:
        """Check that each dimension has a start, a step and a size, and that those that wrap read nothing twice."""
        shape = shape_of(self.source.type)
        if not len(shape) == len(self.starts) == len(self.step_list) == len(self.sizes):
            raise VerifyException(f"a part of {describe(self.source.type)} has {len(shape)} starts, steps and sizes")
        if 0 in self.step_list:
            raise VerifyException("a step is not 0")
        if any(not 0 <= a < len(shape) or self.step_list[a] != 1 or self.sizes[a] > shape[a] for a in self.wrapped):
            raise VerifyException("a dimension that wraps has the step 1 and is read once at most")
        if element_of(self.source.type) != element_of(self.result.type):
            raise VerifyException("the dtype stays")


@op_definition
class TakeOp(TesseraOp):
    """Reads elements of a tile at places along one dimension that an index tile names, zero outside.

    The index has the tile's sizes in all other dimensions, and the result has the index's shape.
    """

    name = "tessera_tile.take"
    source = operand_def(TileType)
    index = operand_def(TileType)
    axis = prop_def(IntAttr)
    result = result_def(TileType)
    traits = traits_def(*PURE)
    custom_directives = (Int,)
    assembly_format = (
        "$source `[` $index `]` `axis` custom<Int>($axis) attr-dict `:` type($source) `[` type($index) `]` "
        "`->` type($result)"
    )

    def __init__(self, source: SSAValue, index: SSAValue, axis: int):
        super().__init__(
            operands=[source, index],
            properties={"axis": IntAttr(axis)},
            result_types=[TileType.of(shape_of(index.type), element_of(source.type))],
        )

    def verify_(self) -> None:
        """Check the shapes, and that the index is an integer."""
        source, index_, axis = shape_of(self.source.type), shape_of(self.index.type), self.axis.data
        same = [a == b for a, b in zip(source, index_, strict=False)]
        if len(source) != len(index_) or not 0 <= axis < len(source) or not all([*same[:axis], *same[axis + 1 :]]):
            raise VerifyException(
                f"an index of {describe(self.source.type)} along dimension {axis} is not {describe(self.index.type)}"
            )
        if not dtype_of(element_of(self.index.type)).is_int:
            raise VerifyException(f"the index is an integer tile, not {describe(self.index.type)}")
        if shape_of(self.result.type) != index_ or element_of(self.result.type) != element_of(self.source.type):
            raise VerifyException("the result has the index's shape and the tile's dtype")
