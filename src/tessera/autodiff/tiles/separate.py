"""Gives each loop of products of an adjoint a grid of its own.

A program of an adjoint computes the values of its kernel again, by a loop, and then goes back over them by another one.
Between the two it needs little: a few rows, and operands of products. As two grids, which hand these on through memory,
both are what matrix units are fed best for: one loop of products.
"""

from __future__ import annotations

from xdsl.dialects.scf import ForOp
from xdsl.ir import Operation, SSAValue

from tessera.autodiff.tiles.emitter import Emitter
from tessera.autodiff.tiles.kept import Keeper, again, hoist, is_everywhere
from tessera.autodiff.tiles.loops import add_products, scale_sums
from tessera.canonicalize.dead_code import remove_dead
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.structure import GridOp
from tessera.ir.tile.types import TileType
from tessera.ir.walking import ops_in


def separate(emit: Emitter, keeper: Keeper, grid: GridOp) -> None:
    """Move the last loop of products of a grid, and what follows it, to a grid behind.

    Args:
        emit: writes ops.
        keeper: keeps values of its programs.
        grid: the grid; it stays as it is where it has one such loop, or would have to keep more than tiles.
    """
    loops = [op for op in grid.body.block.ops if isinstance(op, ForOp) and _has_products(op)]
    if len(loops) < 2:
        return
    last = loops[-1]
    hoist(last)
    tail: list[Operation] = [last]
    while (op := tail[-1].next_op) is not None:
        tail.append(op)
    places: dict[SSAValue, SSAValue] = {}
    needed = [value for value in _needed(tail) if value not in grid.body.block.args]
    known: set[SSAValue] = {*grid.body.block.args}
    little = dict.fromkeys(value for value in needed if keeper.is_little(value, known))
    if not all(value in little or isinstance(value.type, TileType) for value in needed):
        return
    kept = {value: keeper.of_program(value, last) for value in needed if value not in little}
    behind = GridOp(list(grid.extents), list(grid.block_sizes), grid.guard)
    places.update(zip(grid.body.block.args, behind.body.block.args, strict=True))
    with emit.into(behind.body.block):
        for value, one in kept.items():
            places[value] = keeper.load(value, one, behind.body.block.args)
        for value in little:
            again(emit, value, places)
        for op in tail:
            emit.location = op.location  # pyright: ignore[reportAttributeAccessIssue]
            copy = op.clone(places)
            emit.add(copy)
            places.update(zip(op.results, copy.results, strict=True))
    add_products(behind)
    scale_sums(behind)
    behind.location = grid.location
    emit.block.insert_op_after(behind, grid)  # before grids that read what it keeps
    for op in reversed(tail):
        op.detach()
        op.erase()
    remove_dead(grid.body.block)


def _has_products(loop: ForOp) -> bool:
    return any(isinstance(op, MmaOp) for op in ops_in(loop))


def _needed(tail: list[Operation]) -> list[SSAValue]:
    """Return the values from outside of the last ops of a program that they use."""
    inner = dict.fromkeys(one for op in tail for one in (op, *ops_in(op)))
    blocks = {block for op in inner for region in op.regions for block in region.blocks}
    used = dict.fromkeys(value for op in inner for value in op.operands)
    return [v for v in used if v.owner not in inner and v.owner not in blocks and not is_everywhere(v)]
