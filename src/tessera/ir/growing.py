"""Which dimensions of a launch's tiles can be larger than the program says, because memory ends where they end.

A tile of whole rows, `K[n : n + 128, :]` of 88 elements each, ends with its tensor. One of 96 elements loads the same
and zeros behind, adds nothing to a product that sums over it, and stores the same: what lies outside of a tensor is not
written. So a size that instructions do not take can become one that they take.
"""

from __future__ import annotations

from xdsl.ir import SSAValue

from tessera.ir.splitting import Axis, Dimensions
from tessera.ir.tile.elementwise import CastOp, constant_value
from tessera.ir.tile.memory import GatherOp, LoadOp, ScatterOp, StoreOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.reduce import ReduceOp
from tessera.ir.tile.shape import TransposeOp
from tessera.ir.tile.structure import GridOp
from tessera.ir.tile.types import DYNAMIC, TileType, shape_of


def fixed_dimensions(grid: GridOp, dimensions: Dimensions) -> set[Axis]:
    """Return the dimensions, of those that can be cut, that cannot grow: more elements would change what is computed.

    Args:
        grid: a launch.
        dimensions: the dimensions of its tiles.
    """
    fixed: set[Axis] = set()
    for op in grid.walk():
        axes: list[Axis] = []
        if isinstance(op, LoadOp | StoreOp):
            axes = _inside(op)
        elif isinstance(op, MmaOp):
            axes = [] if _is_zero_behind(op.a) and _is_zero_behind(op.b) else [(op.a, 1)]
        elif isinstance(op, ReduceOp):
            axes = [(op.source, op.axis.data)]
        elif isinstance(op, GatherOp | ScatterOp):
            tiles = [value for value in (*op.operands, *op.results) if isinstance(value.type, TileType)]
            axes = [(value, axis) for value in tiles for axis in range(len(shape_of(value.type)))]
        fixed |= {dimensions.of(*axis) for axis in axes}
    return fixed


def _inside(op: LoadOp | StoreOp) -> list[Axis]:
    """Return the axes of a box behind which there may be elements of the tensor, or something else than zeros."""
    tile = op.result if isinstance(op, LoadOp) else op.value
    if not isinstance(tile.type, TileType):
        return []
    filled = isinstance(op, LoadOp) and op.fill is not None
    limits = shape_of(op.tensor.type)
    return [
        (tile, axis)
        for axis, at in enumerate(op.kept)
        if filled
        or op.mask is not None
        or limits[at] == DYNAMIC
        or constant_value(op.offsets[at]) != limits[at] - op.size_list[at]
    ]


def _is_zero_behind(value: SSAValue) -> bool:
    """Return whether a tile is loaded, so that it is zero where its box lies outside of the tensor."""
    while isinstance(value.owner, TransposeOp | CastOp):
        value = value.owner.source
    return isinstance(value.owner, LoadOp)
