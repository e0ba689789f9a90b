"""Queries about values that several passes share."""

from __future__ import annotations

from xdsl.ir import Attribute, Operation, SSAValue

from tessera.ir.tile.elementwise import ConstantOp, SplatOp, constant_value
from tessera.ir.tile.shape import BroadcastOp
from tessera.ir.tile.types import TileType, element_of
from tessera.ir.types import dtype_of
from tessera.numerics.dtypes import DType


def dtype_of_value(value: SSAValue) -> DType:
    """Return the dtype of a scalar or of a tile's elements."""
    return dtype_of(element_of(value.type))


def known(value: SSAValue) -> int | float | None:
    """Return the number that a scalar, or every element of a splat tile, is known to be, or None."""
    if isinstance(value.owner, SplatOp):
        value = value.owner.value
    return constant_value(value)


def splat_source(value: SSAValue) -> SSAValue | None:
    """Return the scalar that every element of a tile is, or None."""
    return value.owner.value if isinstance(value.owner, SplatOp) else None


def repeated(value: SSAValue) -> SSAValue | None:
    """Return what a tile repeats: a smaller tile, or a scalar; None for a tile that is neither."""
    owner = value.owner
    if isinstance(owner, BroadcastOp):
        return owner.source
    return splat_source(value)


def constant_like(number: int | float, type_: Attribute) -> list[Operation]:
    """Return the ops that produce `number` as a scalar or splat tile of `type_`, the result of the last one."""
    constant = ConstantOp(number, element_of(type_))
    if isinstance(type_, TileType):
        return [constant, SplatOp(constant.result, type_.shape)]
    return [constant]
