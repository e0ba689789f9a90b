"""Reductions and scans along one dimension, by a function of `REDUCTIONS` or by a combiner of the user's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import IntAttr, StringAttr, UnitAttr
from xdsl.ir import Block, Region, SSAValue
from xdsl.irdl import (
    operand_def,
    opt_prop_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.traits import IsTerminator
from xdsl.utils.exceptions import VerifyException

from tessera.ir.definitions import TesseraOp, op_definition
from tessera.ir.effects import PURE
from tessera.ir.formats import Int
from tessera.ir.tile.elementwise import CastOp, ConstantOp, ElementwiseOp
from tessera.ir.tile.types import TileType, describe, element_of, shape_of

REDUCTIONS = ("sum", "max", "min", "prod", "any", "all")


@op_definition
class ReduceOp(TesseraOp):
    """Combines a tile along `axis`, which disappears; reducing a one-dimensional tile gives a scalar.

    The operand already has the accumulation type. `max` and `min` propagate NaN.
    """

    name = "tessera_tile.reduce"
    source = operand_def(TileType)
    axis = prop_def(IntAttr)
    fn = prop_def(StringAttr)
    result = result_def()
    traits = traits_def(*PURE)
    custom_directives = (Int,)
    assembly_format = "$fn $source `axis` custom<Int>($axis) attr-dict `:` type($source) `->` type($result)"

    def __init__(self, source: SSAValue, axis: int, fn: str):
        shape = shape_of(source.type)
        rest = [size for i, size in enumerate(shape) if i != axis]
        element = element_of(source.type)
        super().__init__(
            operands=[source],
            properties={"axis": IntAttr(axis), "fn": StringAttr(fn)},
            result_types=[TileType.of(rest, element) if rest else element],
        )

    def verify_(self) -> None:
        """Check function, axis and the result's shape."""
        shape = shape_of(self.source.type)
        _verify_axis(self.fn.data, self.axis.data, shape)
        rest = tuple(size for i, size in enumerate(shape) if i != self.axis.data)
        if shape_of(self.result.type) != rest or element_of(self.result.type) != element_of(self.source.type):
            raise VerifyException(f"reducing {describe(self.source.type)} does not give {describe(self.result.type)}")


@op_definition
class ScanOp(TesseraOp):
    """Inclusive running combination along `axis`, from the end when `reverse`."""

    name = "tessera_tile.scan"
    source = operand_def(TileType)
    axis = prop_def(IntAttr)
    fn = prop_def(StringAttr)
    reverse = opt_prop_def(UnitAttr)
    result = result_def(TileType)
    traits = traits_def(*PURE)
    custom_directives = (Int,)
    assembly_format = (
        "$fn $source `axis` custom<Int>($axis) (`reverse` $reverse^)? attr-dict `:` type($source) `->` type($result)"
    )

    def __init__(self, source: SSAValue, axis: int, fn: str, reverse: bool = False):
        super().__init__(
            operands=[source],
            properties={
                "axis": IntAttr(axis),
                "fn": StringAttr(fn),
                "reverse": UnitAttr() if reverse else None,
            },
            result_types=[source.type],
        )

    def verify_(self) -> None:
        """Check function, axis and that the type stays."""
        _verify_axis(self.fn.data, self.axis.data, shape_of(self.source.type))
        if self.source.type != self.result.type:
            raise VerifyException("a scan keeps the type")


@op_definition
class CombinedOp(TesseraOp):
    """Ends a combiner, and names the combined elements."""

    name = "tessera_tile.combined"
    values = var_operand_def()
    traits = traits_def(IsTerminator())
    assembly_format = "$values attr-dict `:` type($values)"

    def __init__(self, values: Sequence[SSAValue]):
        super().__init__(operands=[list(values)])


COMBINER_OPS = (ConstantOp, ElementwiseOp, CastOp)
"""What a combiner is made of: its ops apply to any number of elements at once."""


@op_definition
class ReduceByOp(TesseraOp):
    """Combines tiles of one shape along `axis`, which disappears, by a combiner of their elements.

    The combiner's arguments are an element of each tile and then another element of each; it is associative and
    commutative. Reducing one-dimensional tiles gives scalars.
    """

    name = "tessera_tile.reduce_by"
    sources = var_operand_def(TileType)
    axis = prop_def(IntAttr)
    combiner = region_def("single_block")
    outputs = var_result_def()
    traits = traits_def(*PURE)
    custom_directives = (Int,)
    assembly_format = "$sources `axis` custom<Int>($axis) $combiner attr-dict `:` type($sources) `->` type($outputs)"

    def __init__(self, sources: Sequence[SSAValue], axis: int, combiner: Block):
        shape = shape_of(sources[0].type)
        rest = [size for i, size in enumerate(shape) if i != axis]
        elements = [element_of(source.type) for source in sources]
        super().__init__(
            operands=[list(sources)],
            properties={"axis": IntAttr(axis)},
            regions=[Region(combiner)],
            result_types=[[TileType.of(rest, element) if rest else element for element in elements]],
        )

    def verify_(self) -> None:
        """Check the axis, the combiner, and the shapes of operands and results."""
        shape = _verify_combiner(self.sources, self.axis.data, self.combiner.block)
        rest = tuple(size for i, size in enumerate(shape) if i != self.axis.data)
        given = [(shape_of(output.type), element_of(output.type)) for output in self.outputs]
        if given != [(rest, element_of(source.type)) for source in self.sources]:
            raise VerifyException(f"results are of shape {rest} and of the operands' types")


@op_definition
class ScanByOp(TesseraOp):
    """Inclusive running combination of tiles along `axis`, from the end when `reverse`, by an associative combiner.

    The combiner's arguments are what has been combined so far and then the next elements.
    """

    name = "tessera_tile.scan_by"
    sources = var_operand_def(TileType)
    axis = prop_def(IntAttr)
    reverse = opt_prop_def(UnitAttr)
    combiner = region_def("single_block")
    outputs = var_result_def(TileType)
    traits = traits_def(*PURE)
    custom_directives = (Int,)
    assembly_format = (
        "$sources `axis` custom<Int>($axis) (`reverse` $reverse^)? $combiner attr-dict "
        "`:` type($sources) `->` type($outputs)"
    )

    def __init__(self, sources: Sequence[SSAValue], axis: int, combiner: Block, reverse: bool = False):
        super().__init__(
            operands=[list(sources)],
            properties={"axis": IntAttr(axis), "reverse": UnitAttr() if reverse else None},
            regions=[Region(combiner)],
            result_types=[[source.type for source in sources]],
        )

    def verify_(self) -> None:
        """Check the axis, the combiner, and that the types stay."""
        _verify_combiner(self.sources, self.axis.data, self.combiner.block)
        if [source.type for source in self.sources] != [output.type for output in self.outputs]:
            raise VerifyException("a scan keeps the types")


REDUCING = (ReduceOp, ScanOp, ReduceByOp, ScanByOp)
"""Ops that combine the elements of their operands."""


def combiner_of(op: ReduceByOp | ScanByOp, values: Mapping[SSAValue, SSAValue] | None = None) -> Block:
    """Return a copy of an op's combiner.

    Args:
        op: the op.
        values: what stands for scalars from outside the combiner.
    """
    copy = op.clone(dict(values or {}))
    block = copy.detach_region(0).detach_block(0)
    copy.erase()
    return block


def _verify_combiner(sources: Sequence[SSAValue], axis: int, combiner: Block) -> tuple[int, ...]:
    """Check what reductions and scans by a combiner share; return the shape of the operands."""
    if not sources:
        raise VerifyException("at least one tile is combined")
    shape = shape_of(sources[0].type)
    if any(shape_of(source.type) != shape for source in sources):
        raise VerifyException("tiles that are combined together have one shape")
    if not 0 <= axis < len(shape):
        raise VerifyException(f"axis {axis} does not exist in {shape}")
    elements = [element_of(source.type) for source in sources]
    if [argument.type for argument in combiner.args] != elements * 2:
        raise VerifyException("a combiner takes an element of each tile, and another one of each")
    last = combiner.last_op
    if not isinstance(last, CombinedOp) or [value.type for value in last.values] != elements:
        raise VerifyException("a combiner gives an element of each tile")
    for op in combiner.ops:
        if op is not last and not isinstance(op, COMBINER_OPS):
            raise VerifyException(f"a combiner cannot hold {op.name}: only constants, casts and elementwise functions")
    return shape


def _verify_axis(fn: str, axis: int, shape: tuple[int, ...]) -> None:
    if fn not in REDUCTIONS:
        raise VerifyException(f"no reduction is called {fn}; one of {', '.join(REDUCTIONS)}")
    if not 0 <= axis < len(shape):
        raise VerifyException(f"axis {axis} does not exist in {shape}")
