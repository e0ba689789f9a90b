"""Reductions and scans along one dimension."""

from __future__ import annotations

from xdsl.dialects.builtin import IntAttr, StringAttr, UnitAttr
from xdsl.ir import SSAValue
from xdsl.irdl import (
    IRDLOperation,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.utils.exceptions import VerifyException

from tessera.ir.definitions import op_definition
from tessera.ir.effects import PURE
from tessera.ir.formats import Int
from tessera.ir.tile.types import TileType, describe, element_of, shape_of

REDUCTIONS = ("sum", "max", "min", "prod", "any", "all")


@op_definition
class ReduceOp(IRDLOperation):
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
class ScanOp(IRDLOperation):
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


def _verify_axis(fn: str, axis: int, shape: tuple[int, ...]) -> None:
    if fn not in REDUCTIONS:
        raise VerifyException(f"no reduction is called {fn}; one of {', '.join(REDUCTIONS)}")
    if not 0 <= axis < len(shape):
        raise VerifyException(f"axis {axis} does not exist in {shape}")
