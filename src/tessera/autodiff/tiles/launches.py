"""The grids around an adjoint's own: they set memory to zero, copy it, and add up partial sums in a fixed order."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.scf import ForOp, YieldOp
from xdsl.ir import Block, Region, SSAValue

from tessera.autodiff.tiles.emitter import Emitter, wide
from tessera.ir.tile.elementwise import ConstantOp
from tessera.ir.tile.memory import LoadOp, StoreOp
from tessera.ir.tile.structure import DimOp, GridOp
from tessera.ir.tile.types import TensorType, TileType, element_of
from tessera.ir.types import index

ROWS, COLUMNS = 8, 256
"""Elements of a program along the last two dimensions of what it sets."""
AT_ONCE = 16
"""Partial sums that are added up by one reduction."""


def set_zero(emit: Emitter, tensor: SSAValue) -> None:
    """Set a tensor to zero."""
    grid, offsets, sizes = _over(emit, tensor, ROWS)
    with emit.into(grid.body.block):
        zero = emit.zero(TileType.of(sizes, element_of(tensor.type)) if sizes else element_of(tensor.type))
        emit.add(StoreOp(zero, tensor, offsets, sizes))


def copy(emit: Emitter, source: SSAValue, tensor: SSAValue) -> None:
    """Set a tensor to another one, converted."""
    grid, offsets, sizes = _over(emit, tensor, ROWS)
    with emit.into(grid.body.block):
        tile = emit.value(LoadOp(source, offsets, sizes))
        emit.add(StoreOp(emit.cast(tile, element_of(tensor.type)), tensor, offsets, sizes))


def add_up(emit: Emitter, sums: SSAValue, parts: int, tensor: SSAValue, is_set: bool) -> None:
    """Add partial sums up, in order.

    Args:
        emit: writes ops.
        sums: the partial sums: a tensor with `parts` dimensions before those of the result.
        parts: how many there are.
        tensor: the result.
        is_set: whether the sum is added to what it holds already.
    """
    grid, offsets, sizes = _over(emit, tensor, 1)
    with emit.into(grid.body.block):
        element = wide(element_of(tensor.type))
        start = emit.zero(TileType.of(sizes, element) if sizes else element)
        total = _sum(emit, sums, list[SSAValue](), parts, offsets, sizes, start)
        if is_set:
            total = emit.binary("add", emit.widened(emit.value(LoadOp(tensor, offsets, sizes))), total)
        emit.add(StoreOp(emit.cast(total, element_of(tensor.type)), tensor, offsets, sizes))


def _sum(
    emit: Emitter,
    sums: SSAValue,
    chosen: list[SSAValue],
    parts: int,
    offsets: Sequence[SSAValue],
    sizes: Sequence[int],
    total: SSAValue,
) -> SSAValue:
    """Return a total and all partial sums whose first places are chosen."""
    axis, is_last = len(chosen), len(chosen) == parts - 1
    body = Block(arg_types=[index, total.type])
    with emit.into(body):
        if is_last:
            box = [*[1] * axis, AT_ONCE, *sizes]
            loaded = emit.value(LoadOp(sums, [*chosen, body.args[0], *offsets], box, range(axis)))
            result = emit.binary("add", body.args[1], emit.summed(loaded, [0]))
        else:
            result = _sum(emit, sums, [*chosen, body.args[0]], parts, offsets, sizes, body.args[1])
        emit.add(YieldOp(result))
    step = emit.index(AT_ONCE if is_last else 1)
    return emit.value(ForOp(emit.index(0), emit.value(DimOp(sums, axis)), step, [total], Region(body)))


def _over(emit: Emitter, tensor: SSAValue, rows: int) -> tuple[GridOp, list[SSAValue], list[int]]:
    """Add a grid over the elements of a tensor; return it with the box of a program."""
    assert isinstance(tensor.type, TensorType), "a tensor is set"
    rank = tensor.type.rank
    sizes = [1] * max(rank - 2, 0) + [rows, COLUMNS][-rank:] if rank else []
    extents: list[SSAValue] = []
    for axis, size in enumerate(tensor.type.shape):
        extents.append(emit.value(DimOp(tensor, axis) if size < 0 else ConstantOp(size, index)))
    grid = GridOp(extents, sizes)
    emit.add(grid)
    return grid, list(grid.body.block.args), sizes
